// The classes: what was taught, what the memory holds of it, and where images are dropped to teach more.
import { json } from "./api.js";
import { byId, colour, fromTemplate, make, tried } from "./dom.js";
import { open, picture } from "./images.js";

const THUMBNAILS = 16; // of a class, until all are asked for

const shown = new Map(); // name -> its element, in the order of the classes
const pictures = new Map(); // id -> address of its picture
let remembered = new Map(); // name -> ids, newest first

export const colourOf = (name) => colour(names().indexOf(name));
export const names = () => [...shown.keys()];

export function update(classes) {
  byId("no-class").hidden = classes.length >= 2;
  for (const one of classes) {
    const element = shown.get(one.name) ?? newClass(one.name);
    const accuracy = one.held_out_accuracy === null ? "" : ` · ${Math.round(one.held_out_accuracy)} % right`;
    const facts = `${one.examples} image${one.examples === 1 ? "" : "s"} · ${one.in_memory} in memory${accuracy}`;
    if (element.querySelector(".facts").textContent !== facts) element.querySelector(".facts").textContent = facts;
  }
}

function newClass(name) {
  const element = fromTemplate("class-template");
  shown.set(name, element);
  element.dataset.name = name;
  element.style.setProperty("--colour", colourOf(name));
  element.querySelector("h3").textContent = name;
  element.querySelector("input").ariaLabel = `Add images to ${name}`;
  element.querySelector(".camera").ariaLabel = `Take pictures of ${name}`;
  element.querySelector(".memory").ariaLabel = `What the memory holds of ${name}`;
  element.querySelector(".all").onclick = (event) => {
    const more = event.currentTarget.ariaExpanded !== "true";
    event.currentTarget.ariaExpanded = more;
    showMemory(name);
  };
  byId("class-list").append(element);
  byId("names").append(make("option", { value: name }));
  return element;
}

/** Ask for what the memory holds now. */
export async function updateMemory() {
  const stored = await json("GET", "/v1/memory");
  remembered = new Map();
  for (const { id, label } of stored.reverse()) remembered.set(label, [...(remembered.get(label) ?? []), id]);
  for (const name of names()) await showMemory(name);
  const ids = new Set(stored.map(({ id }) => id));
  for (const [id, address] of pictures) if (!ids.has(id)) forget(id, address);
}

async function showMemory(name) {
  const [element, ids] = [shown.get(name), remembered.get(name) ?? []];
  const [list, all] = [element.querySelector(".memory"), element.querySelector(".all")];
  all.hidden = ids.length <= THUMBNAILS;
  all.textContent = all.ariaExpanded === "true" ? "Show fewer" : `Show all ${ids.length}`;
  const wanted = all.ariaExpanded === "true" ? ids : ids.slice(0, THUMBNAILS);
  const there = new Map([...list.children].map((item) => [item.dataset.id, item]));
  const items = [];
  for (const id of wanted) {
    const item = there.get(id) ?? (await thumbnail(id, name).catch(() => null)); // it may be deleted meanwhile
    if (item) items.push(item);
  }
  const focused = list.querySelector(":focus");
  list.replaceChildren(...items);
  focused?.focus();
  items.forEach((item, index) => (item.firstChild.tabIndex = index === 0 ? 0 : -1)); // the arrow keys reach the rest
}

function forget(id, address) {
  URL.revokeObjectURL(address);
  pictures.delete(id);
}

async function thumbnail(id, name) {
  if (!pictures.has(id)) pictures.set(id, URL.createObjectURL(await picture(id)));
  const image = make("img", { src: pictures.get(id), alt: `image of ${name}`, draggable: false });
  const item = make("li", {}, make("button", { type: "button", onclick: tried(() => open(id, name)) }, image));
  item.dataset.id = id;
  return item;
}

byId("class-list").addEventListener("keydown", (event) => {
  const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  const next = step && event.target.closest(".memory li")?.[step]?.querySelector("button");
  if (next) next.focus();
});
