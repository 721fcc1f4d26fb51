// Images that are tried: their predictions, and one click to teach or correct the class of each.
import { json, request } from "./api.js";
import { Bars } from "./bars.js";
import { byId, handler, make, showMessage, throttle } from "./dom.js";
import { formOf, imagesOf, newId, shrink } from "./files.js";

const [MAX_IMAGES, MAX_NEXT, MAX_CLASSES] = [24, 4, 1000];

const shown = []; // newest first
let queue = Promise.resolve();

/** Show what the model predicts for files, one after another. */
export function add(files) {
  for (const file of imagesOf(files)) {
    const image = new TriedImage(file);
    queue = queue.then(() => image.start(byId("keep").checked));
  }
}

export const loadImage = async (id) => (await request("GET", `v1/examples/${id}/image`)).blob();

/** Show a stored example of a class in a dialog. */
export async function open(id, label) {
  const dialog = byId("image");
  const image = new TriedImage(await loadImage(id), { id, label, stored: true }, dialog.querySelector("ul"));
  dialog.onclose = () => image.remove();
  image.part(".delete").textContent = "Delete";
  dialog.showModal();
  await image.start();
}

/** Show other stored images without a class: those that would teach most, if the model can tell, or the newest. */
async function showNext() {
  const [box, list] = [byId("next"), byId("next").querySelector("ul")];
  const before = shown.filter(({ element }) => list.contains(element));
  const known = new Set(shown.map(({ id }) => id));
  const count = MAX_NEXT + known.size;
  const instructive = await json("GET", `v1/suggestions?count=${count}`).catch(() => null);
  const ids = (instructive ?? (await json("GET", `v1/examples?most=${count}`))).filter((id) => !known.has(id));
  const images = await Promise.all(ids.slice(0, MAX_NEXT).map(async (id) => [id, await loadImage(id)]));
  before.forEach((image) => image.remove());
  box.hidden = images.length === 0;
  box.querySelector("span").textContent =
    instructive === null ? "Images without a class. Click the class of each:" : "Label next: these images would teach the model most. Click the class of each:";
  await Promise.all(images.reverse().map(([id, blob]) => new TriedImage(blob, { id, stored: true }, list).start()));
}

/** Once all of those shown are labelled or deleted; they never change under the user's hand. */
export const updateNext = throttle(2000, async () => {
  const list = byId("next").querySelector("ul");
  if (!shown.some(({ element, bars }) => list.contains(element) && bars.label === null)) await showNext();
});

byId("next").querySelector("button").onclick = handler(showNext);

/** Update all predictions after the model has changed. */
export const refresh = () => predict(shown.filter((image) => image.ready));

document.addEventListener("classes", () => shown.forEach(({ bars }) => bars.show()));

/** Show the new names of classes, given by the old ones; two may have exchanged theirs. */
export function renameLabels(names) {
  const changed = [...names].some(([old, name]) => old !== undefined && old !== name);
  if (!changed) return;
  for (const { bars } of shown) {
    for (const key of ["label", "before"]) bars[key] = names.get(bars[key]) ?? bars[key];
    for (const one of bars.prediction?.classes ?? []) one.name = names.get(one.name) ?? one.name;
  }
}

/** Remove the images of a class that was removed: its examples are deleted. */
export function removeLabel(name) {
  for (const image of shown.filter(({ bars }) => bars.label === name)) image.remove();
}

/** Show the predictions of images. One that is stored on the server is not sent again. */
async function predict(images) {
  const [stored, others] = [images.filter((image) => image.stored), images.filter((image) => !image.stored)];
  const show = (images, { predictions }) => predictions.forEach((prediction, index) => images[index].show(prediction));
  if (stored.length > 0) {
    const query = new URLSearchParams([["top", MAX_CLASSES], ...stored.map(({ id }) => ["id", id])]);
    show(stored, await json("GET", `v1/predictions?${query}`));
  }
  if (others.length > 0) {
    const form = new FormData();
    for (const { blob } of others) form.append("image", blob);
    show(others, await json("POST", `v1/predict?top=${MAX_CLASSES}`, form));
  }
}

class TriedImage {
  constructor(blob, { id = newId(), label = null, stored = false } = {}, list = byId("images")) {
    Object.assign(this, { blob, id, stored, ready: false, pending: Promise.resolve() });
    this.picture = make("img", { src: URL.createObjectURL(blob), alt: "", draggable: false });
    this.bars = new Bars(this.picture, (name) => this.run(() => this.send(name)));
    this.bars.label = label;
    this.bars.say("Predicting …");
    this.element = this.bars.element;
    this.part = this.bars.part;
    this.part(".delete").onclick = () => (this.ready ? this.run(() => this.delete()) : this.remove());
    this.part("form").hidden = true;
    list.prepend(this.element);
    shown.unshift(this);
    for (const old of shown.slice(MAX_IMAGES).filter(({ ready }) => ready)) old.remove();
  }

  start(store = false) {
    return this.run(async () => {
      if (!this.stored) this.blob = await shrink(this.blob);
      if (store) await this.send(null);
      else await predict([this]);
      this.ready = true;
      this.part("form").hidden = false;
    });
  }

  async send(label) {
    const wasTaught = this.bars.label !== null;
    const before = this.bars.label ?? this.bars.best();
    if (this.stored) await request("PUT", `v1/examples/${this.id}/label`, { label, new_class: true });
    else {
      const form = formOf({ image: this.blob, id: this.id, ...(label && { label, new_class: true }) });
      const [{ prediction }] = await json("POST", `v1/examples?top=${MAX_CLASSES}`, form);
      this.show(prediction);
    }
    this.stored = true;
    if (label !== null) Object.assign(this.bars, { label, before, wasTaught });
    this.bars.summarize();
  }

  async delete() {
    if (this.stored) await request("DELETE", `v1/examples/${this.id}`);
    this.element.nextElementSibling?.focus();
    this.remove();
    showMessage("Image deleted.");
  }

  /** Run an action after those in progress for this image, so that a label never arrives before its image. */
  run(action) {
    return (this.pending = this.pending.then(() => this.attempt(action)));
  }

  /** If the action fails, the error is shown, with a button to try again if that may help. */
  async attempt(action) {
    const again = this.part(".again");
    this.element.setAttribute("aria-busy", "true");
    try {
      await action();
      again.hidden = true;
      this.picture.hidden = false;
    } catch (error) {
      this.bars.say(`${this.blob.name ? `${this.blob.name}: ` : ""}${error.message}.`, "error");
      again.hidden = !error.mayPass;
      this.picture.hidden = !this.ready && !error.mayPass; // the browser cannot show it
      again.onclick = () => this.run(action);
    }
    this.element.setAttribute("aria-busy", "false");
  }

  show(prediction) {
    if (prediction.classes.length === 0 && this.bars.best()) return; // its image is no longer stored on the server
    this.bars.show(prediction);
    this.picture.alt = this.bars.label === null ? "image without a class" : `image of ${this.bars.label}`;
  }

  remove() {
    URL.revokeObjectURL(this.picture.src);
    this.element.closest("dialog")?.close();
    this.element.remove();
    if (shown.includes(this)) shown.splice(shown.indexOf(this), 1);
  }
}
