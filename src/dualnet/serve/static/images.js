// Cards of the images that were added: predictions for each, and one click to teach or correct its class.
import { json, request } from "./api.js";
import { colourOf } from "./classes.js";
import { byId, fromTemplate, make, percent, showMessage } from "./dom.js";

const MAX_SIDE = 512; // pixels; the model sees fewer, and resizing removes the metadata of photos
const [MAX_CARDS, MAX_UNLABELLED, MAX_ROWS, MAX_CLASSES] = [24, 6, 5, 1000];

const cards = []; // newest first
let queue = Promise.resolve();

/** Classify files one after the other, and teach them if a class is given. */
export function add(files, label) {
  const images = [...files].filter((file) => file.type.startsWith("image/"));
  if (images.length < files.length) showMessage(`${files.length - images.length} files are not images.`);
  let taught = 0;
  for (const file of images) {
    const card = new Card(file);
    queue = queue.then(async () => (taught += await card.start(label, byId("keep").checked)));
  }
  queue = queue.then(() => label && showMessage(`${taught} images taught as ${label}.`));
}

export const loadImage = async (id) => (await request("GET", `v1/examples/${id}/image`)).blob();

/** Show a card for an example that is stored on the server. */
export async function open(id, label, focus = true) {
  const existing = cards.find((card) => card.id === id);
  if (existing) return void existing.element.focus();
  const card = new Card(await loadImage(id), { id, label, stored: true, firstPrediction: label && "" });
  await card.start();
  if (focus) card.element.focus();
}

/** Show the newest examples without a label. */
export async function openUnlabelled() {
  for (const id of (await json("GET", `v1/examples?most=${MAX_UNLABELLED}`)).reverse()) await open(id, null, false);
}

/** Update the predictions of all cards after the model has changed. */
export async function refresh() {
  const shown = cards.filter((card) => card.ready && card.element.isConnected);
  await predict(shown);
}

/** Show the new names of classes, given by the old ones; two may have exchanged theirs. */
export function renameLabels(names) {
  const changed = [...names].filter(([old, name]) => old !== undefined && old !== name).map(([old]) => old);
  if (changed.length === 0) return;
  for (const card of cards) {
    for (const key of ["label", "prediction", "firstPrediction"]) card[key] = names.get(card[key]) ?? card[key];
    for (const old of changed) if (card.rows.has(old)) card.removeRow(old); // the next prediction has the new name
    if (card.ready) card.summarize();
  }
}

/** Remove the cards of a class that was removed: its examples are deleted. */
export function removeLabel(name) {
  for (const card of cards.filter((one) => one.label === name)) card.remove();
  for (const card of cards) if (card.rows.has(name)) card.removeRow(name);
}

/** Show the predictions of cards. An image that is stored on the server is not sent again. */
async function predict(cards) {
  const [stored, others] = [cards.filter((card) => card.stored), cards.filter((card) => !card.stored)];
  const show = (cards, { predictions }) => predictions.forEach((prediction, index) => cards[index].show(prediction));
  if (stored.length > 0) {
    const query = new URLSearchParams([["top", MAX_CLASSES], ...stored.map(({ id }) => ["id", id])]);
    show(stored, await json("GET", `v1/predictions?${query}`));
  }
  if (others.length > 0) {
    const form = new FormData();
    for (const card of others) form.append("image", card.blob);
    show(others, await json("POST", `v1/predict?top=${MAX_CLASSES}`, form));
  }
}

class Card {
  constructor(blob, { id = newId(), label = null, stored = false, firstPrediction = null } = {}) {
    Object.assign(this, { blob, id, label, stored, firstPrediction, prediction: "", ready: false, rows: new Map() });
    this.pending = Promise.resolve();
    this.element = fromTemplate("image-template");
    this.part = (name) => this.element.querySelector(name);
    this.part("img").src = URL.createObjectURL(blob);
    this.part(".summary").textContent = "Predicting …";
    this.part("form").onsubmit = (event) => {
      event.preventDefault();
      this.teach(this.part("input").value.trim());
      this.part("input").value = "";
    };
    this.part(".delete").onclick = () => this.run(() => this.delete());
    byId("images").prepend(this.element);
    cards.unshift(this);
    for (const old of cards.slice(MAX_CARDS).filter((card) => card.ready)) old.remove();
  }

  /** Show what the model predicts for an image before it is taught. */
  start(label, store) {
    return this.run(async () => {
      if (!this.stored) this.blob = await shrink(this.blob);
      if (label || store) await this.send(label);
      else await predict([this]);
      this.ready = true;
    });
  }

  teach = (label) => this.run(() => this.send(label));

  async send(label) {
    if (this.stored) await request("PUT", `v1/examples/${this.id}/label`, { label, new_class: true });
    else {
      const form = new FormData();
      const fields = { image: this.blob, id: this.id, ...(label && { label, new_class: true }) };
      for (const [name, value] of Object.entries(fields)) form.append(name, value);
      const [{ prediction }] = await json("POST", `v1/examples?top=${MAX_CLASSES}`, form);
      this.show(prediction);
    }
    this.stored = true;
    this.label = label ?? null;
    this.summarize();
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

  /** Returns whether the action succeeded; if not, the card shows the error and a button to try again. */
  async attempt(action) {
    const again = this.part(".again");
    this.element.setAttribute("aria-busy", "true");
    try {
      await action();
      again.hidden = true;
    } catch (error) {
      this.part(".summary").textContent = `Error: ${error.message}.`;
      again.hidden = false;
      again.onclick = () => this.run(action);
    }
    this.element.setAttribute("aria-busy", "false");
    return again.hidden;
  }

  show({ classes, unknown }) {
    if (classes.length === 0 && this.prediction) return; // its image is no longer stored on the server
    this.prediction = classes[0]?.name ?? "";
    this.unknown = unknown;
    this.firstPrediction ??= this.prediction;
    const best = classes.slice(0, MAX_ROWS);
    for (const name of this.rows.keys()) if (!best.some((one) => one.name === name)) this.removeRow(name);
    for (const { name, probability } of best) {
      const row = this.rows.get(name) ?? this.addRow(name);
      row.style.setProperty("--share", probability);
      row.querySelector("b").textContent = percent(probability);
      // Sort the rows, unless the user may be about to click one.
      if (!this.element.matches(":hover, :focus-within")) this.part(".predictions").append(row.parentElement);
    }
    this.summarize();
  }

  addRow(name) {
    const row = make("button", { type: "button", onclick: () => this.teach(name) }, make("span", {}, name), make("b"));
    row.style.setProperty("--colour", colourOf(name));
    this.part(".predictions").append(make("li", {}, row));
    this.rows.set(name, row);
    return row;
  }

  removeRow(name) {
    this.rows.get(name).parentElement.remove();
    this.rows.delete(name);
  }

  summarize() {
    const known = this.unknown ? "None of these classes? Enter a new one. Closest" : "Prediction";
    const none = "No prediction before two classes have images: enter a class below.";
    const prediction = this.prediction ? `${known}: ${this.prediction}` : none;
    const first = this.firstPrediction ? ` (predicted before: ${this.firstPrediction})` : "";
    this.part(".summary").textContent = this.label === null ? prediction : `Taught as ${this.label}${first}`;
    this.element.dataset.prediction = this.prediction;
    this.part("img").alt = this.label === null ? "image without a class" : `image of ${this.label}`;
    for (const [name, row] of this.rows) row.setAttribute("aria-pressed", name === this.label);
  }

  remove() {
    URL.revokeObjectURL(this.part("img").src);
    this.element.remove();
    cards.splice(cards.indexOf(this), 1);
  }
}

/** The image, resized if a side is longer than MAX_SIDE. */
async function shrink(blob) {
  const bitmap = await createImageBitmap(blob).catch(() => {
    throw new Error("the browser cannot read this image");
  });
  const scale = MAX_SIDE / Math.max(bitmap.width, bitmap.height);
  if (scale >= 1) return blob;
  const canvas = make("canvas", { width: bitmap.width * scale, height: bitmap.height * scale });
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // behind transparent pixels, as in the service; JPEG would make them black
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
}

/** `crypto.randomUUID` is only available over HTTPS and on loopback. */
const newId = () => [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36)).join("-");
