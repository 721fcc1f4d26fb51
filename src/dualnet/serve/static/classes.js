// The list of classes: their figures, their images in the memory, and drop zones for more images.
import { json, request } from "./api.js";
import { byId, colour, fromTemplate, handler, make, showMessage } from "./dom.js";
import { loadImage, open, removeLabel, renameLabels } from "./images.js";

const THUMBNAILS = 16; // per class, unless all are shown

const elements = new Map(); // by class number, in the order of the classes
const imageUrls = new Map(); // by example id
let inMemory = new Map(); // class name -> example ids, newest first

const numberOf = (name) => [...elements.keys()].find((number) => elements.get(number).dataset.name === name);
export const colourOf = (name) => colour(numberOf(name) - 1);
export const all = () => [...elements].map(([number, element]) => ({ number, name: element.dataset.name }));

export function update(classes) {
  byId("no-class").hidden = classes.length >= 2;
  const numbers = new Set(classes.map(({ number }) => number));
  for (const number of [...elements.keys()]) if (!numbers.has(number)) removeElement(number);
  const before = new Map(all().map(({ number, name }) => [number, name]));
  renameLabels(new Map(classes.map(({ number, name }) => [before.get(number), name])));
  for (const one of classes) {
    const element = elements.get(one.number) ?? addElement(one.number);
    if (element.dataset.name !== one.name) setName(element, one.name);
    const accuracy = one.held_out_accuracy === null ? "" : ` · ${Math.round(one.held_out_accuracy)} % accuracy`;
    const facts = `${one.examples} image${one.examples === 1 ? "" : "s"} · ${one.in_memory} in memory${accuracy}`;
    if (element.querySelector(".facts").textContent !== facts) element.querySelector(".facts").textContent = facts;
  }
}

function addElement(number) {
  const element = fromTemplate("class-template");
  elements.set(number, element);
  element.style.setProperty("--colour", colour(number - 1));
  element.querySelector(".edit").onclick = () => edit(number);
  element.querySelector(".all").onclick = (event) => {
    event.currentTarget.ariaExpanded = event.currentTarget.ariaExpanded !== "true";
    showMemory(element);
  };
  byId("class-list").append(element);
  return element;
}

/** Show the name of a class, which may have changed. */
function setName(element, name) {
  element.dataset.name = name;
  element.querySelector("h3").textContent = name;
  element.querySelector("input").ariaLabel = `Add images to ${name}`;
  element.querySelector(".camera").ariaLabel = `Take photos of ${name}`;
  element.querySelector(".edit").ariaLabel = `Edit ${name}`;
  element.querySelector(".memory").ariaLabel = `Images of ${name} in memory`;
  element.querySelector(".memory").replaceChildren(); // their descriptions have the old name
  showNames();
}

function removeElement(number) {
  const element = elements.get(number);
  elements.delete(number);
  element.remove();
  removeLabel(element.dataset.name);
  showNames();
}

/** Update the suggestions for the class of an image. */
const showNames = () => byId("names").replaceChildren(...all().map(({ name: value }) => make("option", { value })));

/** Open the dialog that renames or removes a class. */
function edit(number) {
  const [dialog, { name }] = [byId("edit-class"), elements.get(number).dataset];
  const input = dialog.querySelector("input");
  byId("edit-title").textContent = `Class ${name}`;
  input.value = name;
  dialog.querySelector("form").onsubmit = handler(async () => {
    const wanted = input.value.trim();
    dialog.close();
    update(await json("PUT", `v1/classes/${number}/name`, { name: wanted }));
    await updateMemory();
    showMessage(`${name} renamed to ${wanted}.`);
  });
  byId("remove-class").onclick = handler(async () => {
    dialog.close();
    await request("DELETE", `v1/classes/${number}`);
    update(await json("GET", "v1/classes"));
    showMessage(`${name} removed, and its images deleted.`);
  });
  dialog.showModal();
  input.select();
}

/** Load the list of examples in the memory, and show them. */
export async function updateMemory() {
  const stored = await json("GET", "v1/memory");
  inMemory = new Map();
  for (const { id, label } of stored.reverse()) inMemory.set(label, [...(inMemory.get(label) ?? []), id]);
  for (const element of elements.values()) await showMemory(element);
  const ids = new Set(stored.map(({ id }) => id));
  for (const id of imageUrls.keys()) if (!ids.has(id)) dropImage(id);
}

async function showMemory(element) {
  const { name } = element.dataset;
  const ids = inMemory.get(name) ?? [];
  const [list, all] = [element.querySelector(".memory"), element.querySelector(".all")];
  all.hidden = ids.length <= THUMBNAILS;
  all.textContent = all.ariaExpanded === "true" ? "Show fewer" : `Show all ${ids.length}`;
  const wanted = all.ariaExpanded === "true" ? ids : ids.slice(0, THUMBNAILS);
  const existing = new Map([...list.children].map((item) => [item.dataset.id, item]));
  const items = [];
  for (const id of wanted) {
    const item = existing.get(id) ?? (await thumbnail(id, name).catch(() => null)); // null: deleted in the meantime
    if (item) items.push(item);
  }
  if (element.dataset.name !== name) return; // renamed in the meantime: shown again with the new name
  const focused = list.querySelector(":focus");
  list.replaceChildren(...items);
  focused?.focus();
  items.forEach((item, index) => (item.firstChild.tabIndex = index === 0 ? 0 : -1)); // the others are reached with the arrow keys
}

function dropImage(id) {
  URL.revokeObjectURL(imageUrls.get(id));
  imageUrls.delete(id);
}

async function thumbnail(id, name) {
  if (!imageUrls.has(id)) imageUrls.set(id, URL.createObjectURL(await loadImage(id)));
  const image = make("img", { src: imageUrls.get(id), alt: `image of ${name}`, draggable: false });
  const item = make("li", {}, make("button", { type: "button", onclick: handler(() => open(id, name)) }, image));
  item.dataset.id = id;
  return item;
}

byId("class-list").addEventListener("keydown", (event) => {
  const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  const next = step && event.target.closest(".memory li")?.[step]?.querySelector("button");
  if (next) next.focus();
});
