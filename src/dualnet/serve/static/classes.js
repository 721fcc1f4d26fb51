// The cards of the classes: their figures and images, and what is taught to them.
import { json, request } from "./api.js";
import * as camera from "./camera.js";
import { byId, colour, fromTemplate, handler, make, plural, showMessage } from "./dom.js";
import { formOf, imagesOf, newId, shrink } from "./files.js";
import { loadImage, open, removeLabel, renameLabels } from "./images.js";

const MAX_THUMBNAILS = 30; // per class, the newest
const UNDO_SECONDS = 20;

const cards = new Map(); // by class number, in the order of the classes
let queue = Promise.resolve();
let reload = null; // loads the status and shows it: an older event is ignored after that

export const connect = (loadStatus) => (reload = loadStatus);

const present = () => [...cards.values()].filter((card) => card.removal === null);
const cardOf = (name) => present().find((card) => card.row.name === name);
export const colourOf = (name) => colour((cardOf(name)?.number ?? 1) - 1);
export const all = () => present().map(({ row }) => ({ ...row, learned: row.examples - row.held_out - row.waiting }));
export const sending = () => present().reduce((total, card) => total + card.uncounted.size, 0);

/** Show the classes of a status. */
export function update(rows) {
  byId("no-class").hidden = rows.filter(({ examples }) => examples > 0).length >= 2;
  const numbers = new Set(rows.map(({ number }) => number));
  for (const card of cards.values()) if (!numbers.has(card.number)) card.remove();
  const before = new Map([...cards].map(([number, { row }]) => [number, row.name]));
  for (const row of rows) (cards.get(row.number) ?? new Card(row.number)).update(row);
  renameLabels(new Map(rows.map(({ number, name }) => [before.get(number), name])));
  announce();
}

/** Tell the predictions which classes there are, and which have learned images. */
function announce() {
  byId("names").replaceChildren(...all().map(({ name: value }) => make("option", { value })));
  document.dispatchEvent(new Event("classes"));
}

/** Add a class, or take back its removal. */
export async function add(name) {
  const removed = [...cards.values()].find((card) => card.removal !== null && card.row.name === name);
  if (removed) return removed.undo();
  await request("POST", "v1/classes", { classes: [name] });
  await reload();
  showMessage(`${name} added. Now add images of it.`);
}

/** Teach images of a class, which may be new, one after another. */
export async function teach(files, name) {
  if (!cardOf(name)) await add(name);
  for (const file of imagesOf(files)) cardOf(name).teach(file);
}

class Card {
  constructor(number) {
    Object.assign(this, { number, row: { name: null, examples: 0 }, removal: null, thumbnails: new Map() });
    this.queued = []; // images without a place in the list of those that are stored
    this.uncounted = new Set(); // the ids of those that no status counts yet, oldest first
    this.element = fromTemplate("class-template");
    this.part = (name) => this.element.querySelector(name);
    this.element.style.setProperty("--colour", colour(number - 1));
    this.part(".edit").onclick = () => this.edit();
    this.part(".undo .main").onclick = () => this.undo();
    this.part(".undo .final").onclick = () => this.removeNow();
    this.part(".card").addEventListener("keydown", (event) => this.move(event));
    this.part(".card").addEventListener("focusin", ({ target }) => this.setTabStop(target));
    this.connectCamera();
    this.setTabStop(this.part("input"));
    cards.set(number, this);
    byId("class-list").append(this.element);
  }

  connectCamera() {
    const [video, recorder, actions] = [this.part("video"), this.part(".recorder"), this.part(".actions")];
    const show = (isOpen) => {
      [recorder.hidden, actions.hidden] = [!isOpen, isOpen];
      this.part(isOpen ? ".record" : ".camera").focus();
    };
    this.part(".camera").onclick = async () => show(await camera.start(video, this.part("input")));
    this.part(".close").onclick = () => {
      camera.stop(video);
      show(false);
    };
    camera.whileHeld(this.part(".record"), async () => {
      const blob = await camera.photo(video);
      if (blob) this.teach(blob);
    });
  }

  update(row) {
    const before = this.row;
    if (JSON.stringify(before) === JSON.stringify(row)) return;
    this.row = row;
    for (const id of [...this.uncounted].slice(0, Math.max(0, row.examples - before.examples))) this.uncounted.delete(id);
    if (before.name !== row.name) this.showName();
    this.showFacts();
    this.loadThumbnails();
  }

  showFacts() {
    const facts = factsOf(this.row, this.uncounted.size);
    if (this.part(".facts").textContent !== facts) this.part(".facts").textContent = facts;
  }

  showName() {
    const { name } = this.row;
    this.element.dataset.name = this.part("h3").textContent = name;
    this.part(".card").ariaLabel = name;
    this.part("input").ariaLabel = `Add images to ${name}`;
    this.part(".camera").ariaLabel = `Camera for ${name}`;
    this.part(".record").ariaLabel = `Hold to record ${name}`;
    this.part(".edit").ariaLabel = `Edit ${name}`;
    this.part(".strip").ariaLabel = `Images of ${name}`;
  }

  // A card is one stop of the Tab key; the arrow keys move within it.

  controls = () => [...this.part(".card").querySelectorAll("button, input")].filter((one) => one.checkVisibility());

  setTabStop(wanted) {
    const controls = this.controls();
    const stop = wanted ?? controls.find((one) => one.tabIndex === 0) ?? controls[0];
    for (const one of this.part(".card").querySelectorAll("button, input")) one.tabIndex = one === stop ? 0 : -1;
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const controls = this.controls();
    controls.at((controls.indexOf(event.target) + step) % controls.length)?.focus();
    event.preventDefault();
  }

  // Teaching

  teach(blob) {
    const image = { id: newId(), blob, item: make("li", { className: "waiting" }) };
    this.queued.push(image);
    this.uncounted.add(image.id);
    this.showThumbnails();
    announce();
    queue = queue.then(() => this.send(image));
  }

  async send(image) {
    try {
      image.blob = await shrink(image.blob);
      this.thumbnails.set(image.id, this.fill(image.item, image.id, image.blob));
      if (!cards.has(this.number)) throw new Error("the class was removed");
      await request("POST", "v1/examples", formOf({ image: image.blob, id: image.id, label: this.row.name }));
      image.isSent = true;
    } catch (error) {
      this.queued.splice(this.queued.indexOf(image), 1);
      this.uncounted.delete(image.id);
      this.showThumbnails();
      this.fail(image, error);
    }
    announce();
  }

  fail(image, error) {
    const name = image.blob.name ?? "photo";
    const item = make("li", { className: "error" }, `${name}: ${error.message}. `);
    const close = () => item.remove();
    const again = () => (close(), this.teach(image.blob));
    if (error.mayPass) item.append(make("button", { type: "button", onclick: again }, "Try again"));
    item.append(make("button", { type: "button", onclick: close, ariaLabel: `Close the error of ${name}` }, "✕"));
    this.part(".failures").append(item);
    this.setTabStop();
  }

  // The newest images: first those to be sent, then those that are stored

  async loadThumbnails() {
    this.loading = this.row;
    const sent = this.queued.filter(({ isSent }) => isSent);
    const stored = await json("GET", `v1/classes/${this.number}/examples?most=${MAX_THUMBNAILS}`).catch(() => null);
    if (stored === null || this.loading !== this.row) return; // removed, or loaded again
    const ids = new Set(stored.map(({ id }) => id));
    this.stored = await Promise.all(stored.map((one) => this.thumbnail(one)));
    this.queued = this.queued.filter(({ id }) => !ids.has(id) && !sent.some((one) => one.id === id));
    for (const { id } of sent) this.uncounted.delete(id);
    this.showThumbnails();
    for (const id of this.thumbnails.keys()) if (!ids.has(id) && !this.queued.some((one) => one.id === id)) this.forget(id);
  }

  async thumbnail({ id, held_out: isTest, waiting }) {
    if (!this.thumbnails.has(id)) {
      const item = make("li");
      this.thumbnails.set(id, item);
      await loadImage(id).then((blob) => this.fill(item, id, blob), () => null); // deleted in the meantime
    }
    const item = this.thumbnails.get(id);
    item.className = waiting ? "waiting" : isTest ? "test" : "";
    const state = waiting ? ", not learned yet" : isTest ? ", kept to test the model" : "";
    const image = item.querySelector("img");
    if (image) image.alt = item.title = `image of ${this.row.name}${state}`;
    return item;
  }

  fill(item, id, blob) {
    const image = make("img", { src: URL.createObjectURL(blob), alt: `image of ${this.row.name}`, draggable: false });
    const show = handler(() => open(id, this.row.name));
    item.replaceChildren(make("button", { type: "button", onclick: show, tabIndex: -1 }, image));
    item.dataset.id = id;
    return item;
  }

  showThumbnails() {
    const items = [...this.queued.map(({ item }) => item), ...(this.stored ?? [])].slice(0, MAX_THUMBNAILS);
    const more = this.row.examples - items.length;
    if (more > 0 && items.length === MAX_THUMBNAILS) items.push(make("li", { className: "more" }, `+ ${more}`));
    const list = this.part(".strip");
    const focused = list.querySelector(":focus");
    list.replaceChildren(...items);
    focused?.focus();
    this.setTabStop();
    this.showFacts();
  }

  forget(id) {
    URL.revokeObjectURL(this.thumbnails.get(id).querySelector("img")?.src);
    this.thumbnails.delete(id);
  }

  // Renaming and removing

  edit() {
    const [dialog, { name }] = [byId("edit-class"), this.row];
    const input = dialog.querySelector("input");
    byId("edit-title").textContent = `Class ${name}`;
    input.value = name;
    input.setCustomValidity("");
    input.oninput = () => input.setCustomValidity("");
    dialog.querySelector("form").onsubmit = handler(async () => {
      const wanted = input.value.trim();
      if (wanted !== name && cardOf(wanted)) {
        input.setCustomValidity(`There is a class ${wanted} already.`);
        return void input.reportValidity();
      }
      dialog.close();
      await request("PUT", `v1/classes/${this.number}/name`, { name: wanted });
      await reload();
      showMessage(`${name} renamed to ${wanted}.`);
    });
    byId("remove-class").onclick = () => {
      dialog.close();
      this.removeLater();
    };
    dialog.showModal();
    input.select();
  }

  /** The service removes the class when the time to undo that is over, or the page is left. */
  removeLater() {
    let seconds = UNDO_SECONDS;
    const count = () => {
      this.part(".undo span").textContent = `${this.row.name} and its images are deleted in ${seconds} s.`;
      if (seconds-- === 0) this.removeNow();
    };
    this.removal = setInterval(count, 1000);
    count();
    this.showRemoval();
    this.part(".undo .main").focus();
  }

  undo() {
    clearInterval(this.removal);
    this.removal = null;
    this.showRemoval();
    this.part(".edit").focus();
  }

  showRemoval() {
    [this.part(".card").hidden, this.part(".undo").hidden] = [this.removal !== null, this.removal === null];
    if (this.removal !== null) camera.stop(this.part("video"));
    announce();
  }

  removeNow = handler(async () => {
    clearInterval(this.removal);
    await request("DELETE", `v1/classes/${this.number}`, undefined, { keepalive: true });
    await reload();
    showMessage(`${this.row.name} removed, and its images deleted.`);
  });

  remove() {
    camera.stop(this.part("video"));
    cards.delete(this.number);
    this.element.remove();
    removeLabel(this.row.name);
  }
}

/** In two lines: how many images are learned, and how many of the others are classified correctly. */
function factsOf({ examples, held_out: tests, waiting, tested, held_out_accuracy: accuracy }, uncounted) {
  const learned = examples - tests - waiting;
  const result = `${Math.round((accuracy * tested) / 100)} of ${plural(tested, "test image")} right`;
  const all = plural(examples + uncounted, "image");
  const facts = waiting + uncounted > 0 ? `${learned} of ${all} learned` : `${plural(learned, "image")} learned`;
  const first = examples + uncounted === 0 ? "No images yet" : learned === 0 ? "Not learned yet" : facts;
  return `${first}\n${tested ? result : tests ? `${tests} kept to test it` : ""}`;
}

addEventListener("pagehide", () => [...cards.values()].forEach((card) => card.removal !== null && card.removeNow()));
