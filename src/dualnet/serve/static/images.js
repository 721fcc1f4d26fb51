// The images that were asked about or taught: what the model says of each, and one click to correct it.
import { json, request } from "./api.js";
import { colourOf } from "./classes.js";
import { byId, fromTemplate, make, percent, say } from "./dom.js";

const LONGEST = 512; // pixels of a side that are sent; the model sees fewer, and a photograph's metadata stays here
const [SHOWN, WAITING, ANSWERS] = [24, 6, 5];

const cards = []; // newest first
let queue = Promise.resolve();

/** Ask about files, and teach them as the class if one is given; one after the other, in their order. */
export function add(files, label) {
  const images = [...files].filter((file) => file.type.startsWith("image/"));
  if (images.length < files.length) say(`${files.length - images.length} of the files are no images.`);
  let taught = 0;
  for (const file of images) {
    const card = new Card(file);
    queue = queue.then(async () => (taught += await card.begin(label, byId("keep").checked)));
  }
  queue = queue.then(() => label && say(`${taught} taught as ${label}.`));
}

export const picture = async (id) => (await request("GET", `/v1/examples/${id}/image`)).blob();

/** Show an example that the service has. */
export async function open(id, label, focus = true) {
  const before = cards.find((card) => card.id === id);
  if (before) return void before.element.focus();
  const card = new Card(await picture(id), { id, label, kept: true, first: label && "" });
  await card.begin();
  if (focus) card.element.focus();
}

/** Show the newest examples that wait for a label. */
export async function openUnlabelled() {
  for (const id of (await json("GET", `/v1/examples?most=${WAITING}`)).reverse()) await open(id, null, false);
}

/** Ask again about all that are shown, after the model has changed. */
export async function refresh() {
  const asked = cards.filter((card) => card.ready && card.element.isConnected);
  if (asked.length > 0) (await predict(asked)).forEach((answer, index) => asked[index].show(answer));
}

async function predict(some) {
  const form = new FormData();
  for (const card of some) form.append("image", card.blob);
  return (await json("POST", "/v1/predict?top=1000", form)).predictions.map((one) => one.classes);
}

class Card {
  constructor(blob, { id = newId(), label = null, kept = false, first = null } = {}) {
    Object.assign(this, { blob, id, label, kept, first, last: [], ready: false, rows: new Map() });
    this.turn = Promise.resolve();
    this.element = fromTemplate("image-template");
    this.part = (name) => this.element.querySelector(name);
    this.part("img").src = URL.createObjectURL(blob);
    this.part(".says").textContent = "Asking …";
    this.part("form").onsubmit = (event) => {
      event.preventDefault();
      this.teach(this.part("input").value.trim());
      this.part("input").value = "";
    };
    this.part(".delete").onclick = () => this.attempt(() => this.delete());
    byId("images").prepend(this.element);
    cards.unshift(this);
    for (const old of cards.slice(SHOWN).filter((card) => card.ready)) old.leave();
  }

  /** The prediction comes first: it shows what the model says of an image that it has not seen. */
  begin(label, keep) {
    return this.attempt(async () => {
      this.blob = await shrunk(this.blob);
      this.show((await predict([this]))[0]);
      if (label || keep) await this.send(label);
      this.ready = true;
    });
  }

  teach = (label) => this.attempt(() => this.send(label));

  async send(label) {
    if (this.kept) await request("PUT", `/v1/examples/${this.id}/label`, { label, new_class: true });
    else {
      const form = new FormData();
      for (const [name, value] of Object.entries({ image: this.blob, id: this.id })) form.append(name, value);
      if (label) for (const [name, value] of Object.entries({ label, new_class: true })) form.append(name, value);
      await request("POST", "/v1/examples", form);
    }
    this.kept = true;
    this.label = label ?? null;
    this.tell();
  }

  async delete() {
    if (this.kept) await request("DELETE", `/v1/examples/${this.id}`);
    this.element.nextElementSibling?.focus();
    this.leave();
    say("Deleted. What the weights have learned from it stays.");
  }

  /** After what is under way for this image, so that a quick click does not overtake the image itself. */
  attempt(action) {
    return (this.turn = this.turn.then(() => this.run(action)));
  }

  /** Whether it went well; otherwise the card says what went wrong, and offers to try again. */
  async run(action) {
    const again = this.part(".again");
    this.element.setAttribute("aria-busy", "true");
    try {
      await action();
      again.hidden = true;
    } catch (error) {
      this.part(".says").textContent = `Not done: ${error.message}.`;
      again.hidden = false;
      again.onclick = () => this.attempt(action);
    }
    this.element.setAttribute("aria-busy", "false");
    return again.hidden;
  }

  show(answer) {
    this.last = answer;
    this.first ??= answer[0]?.name ?? "";
    const best = answer.slice(0, ANSWERS);
    for (const name of this.rows.keys()) if (!best.some((one) => one.name === name)) this.drop(name);
    for (const { name, probability } of best) {
      const row = this.rows.get(name) ?? this.newRow(name);
      row.style.setProperty("--share", probability);
      row.querySelector("b").textContent = percent(probability);
      if (!this.element.matches(":hover, :focus-within")) this.part(".answers").append(row.parentElement); // in order
    }
    this.tell();
  }

  newRow(name) {
    const row = make("button", { type: "button", onclick: () => this.teach(name) }, make("span", {}, name), make("b"));
    row.style.setProperty("--colour", colourOf(name));
    this.part(".answers").append(make("li", {}, row));
    this.rows.set(name, row);
    return row;
  }

  drop(name) {
    this.rows.get(name).parentElement.remove();
    this.rows.delete(name);
  }

  tell() {
    const asked = this.last.length > 0 ? `It says ${this.last[0].name}.` : "Nothing is taught yet. Name its class.";
    const before = this.first === this.label ? ", as it had said" : this.first ? `; it had said ${this.first}` : "";
    this.part(".says").textContent = this.label === null ? asked : `Taught as ${this.label}${before}.`;
    this.part("img").alt = this.label === null ? "image without a class" : `image of ${this.label}`;
    for (const [name, row] of this.rows) row.setAttribute("aria-pressed", name === this.label);
  }

  leave() {
    URL.revokeObjectURL(this.part("img").src);
    this.element.remove();
    cards.splice(cards.indexOf(this), 1);
  }
}

/** The image with at most LONGEST pixels a side; a smaller one as it is. */
async function shrunk(blob) {
  const bitmap = await createImageBitmap(blob).catch(() => {
    throw new Error("this is no image that the browser can read");
  });
  const scale = LONGEST / Math.max(bitmap.width, bitmap.height);
  if (scale >= 1) return blob;
  const canvas = make("canvas", { width: bitmap.width * scale, height: bitmap.height * scale });
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
}

/** `crypto.randomUUID` is missing where a page does not come from loopback or over HTTPS. */
const newId = () => [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36)).join("-");
