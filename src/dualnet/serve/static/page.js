// The page: shows the events of the service, and sends what the user does.
import { json, listen, request } from "./api.js";
import { openCamera } from "./camera.js";
import { draw } from "./chart.js";
import * as classes from "./classes.js";
import { byId, clock, colour, handler, make, showMessage, throttle } from "./dom.js";
import * as images from "./images.js";

const [MAX_POINTS, MAX_CURVES, MAX_NOTICES] = [1400, 20, 5];
const ACTIVITIES = {
  off: "Background training is off.",
  "frozen encoder": "Every image is learned at once. The encoder is frozen: no background training.",
  paused: "Background training is paused.",
  "nothing to learn from": "Background training: waiting for images.",
  "all steps done": "Background training: done, until new images arrive.",
  flat: "Background training: resting, because the loss has stopped falling.",
  learning: "Background training: running.",
};

const history = []; // status events, oldest first
let current = null; // the latest status

// Show the state of the service

const update = {
  memory: throttle(2000, classes.updateMemory),
  predictions: throttle(2000, images.refresh),
  curves: throttle(500, showCurves),
  snapshots: throttle(500, showSnapshots),
};

function show(status) {
  const before = current;
  current = status;
  classes.update(status.classes);
  const { activity } = status.background;
  byId("activity").textContent = status.learner === "running" ? ACTIVITIES[activity] : "The learner is restarting.";
  byId("pause").hidden = ["off", "frozen encoder"].includes(activity);
  byId("pause").textContent = activity === "paused" ? "Resume" : "Pause";
  const waiting = status.waiting > 0 ? `, ${status.waiting} not learned yet` : "";
  byId("counts").textContent = `${status.examples} images, ${status.unlabelled} without a class${waiting}.`;
  update.curves();
  if (before?.version !== status.version) update.predictions();
  if (classImages(before) !== classImages(status)) update.memory();
}

const classImages = (status) => JSON.stringify(status?.classes.map((one) => [one.name, one.examples, one.in_memory]));

/** The current classes with the changes of an event; one without a name was removed. */
function changedClasses(changes = []) {
  const known = new Map(current.classes.map((one) => [one.number, one]));
  for (const one of changes) known.set(one.number, one);
  return [...known.values()].filter(({ name }) => name !== null);
}

/** The index of the point whose neighbours are closest in time, which the service drops first too. */
function mostRedundant(points) {
  const gaps = points.slice(2).map((point, index) => point.time - points[index].time);
  return 1 + gaps.indexOf(Math.min(...gaps));
}

const line = (name, index, value) => ({ name, colour: colour(index), values: history.map(value) });

async function showCurves() {
  const times = history.map((status) => status.time);
  const measured = new Set(history.flatMap((status) => Object.keys(status.accuracy)));
  const shown = classes.all().filter(({ number }) => measured.has(`${number}`)).slice(-MAX_CURVES);
  const accuracies = shown.map(({ number, name }) => line(name, number - 1, (status) => status.accuracy[number]));
  draw(byId("accuracy"), accuracies, times, 100);
  const kinds = [...new Set(history.flatMap((status) => Object.keys(status.losses)))];
  const losses = kinds.map((name, index) => line(name.replace("_", " "), index, (status) => status.losses[name]));
  draw(byId("losses"), losses.filter(({ name }) => name !== "slow"), times);
  draw(byId("slow"), losses.filter(({ name }) => name === "slow"), times);
  draw(byId("steps"), [line("steps", 0, (status) => status.background.steps || null)], times);
}

async function showSnapshots() {
  byId("snapshot-list").replaceChildren(...(await json("GET", "v1/snapshots")).reverse().map(snapshotItem));
}

function snapshotItem({ number, title, time, classes: names }) {
  const name = title || `Snapshot ${number}`;
  const details = ` ${new Date(1000 * time).toLocaleString()}, ${names.length} classes`;
  const text = make("span", {}, make("strong", {}, name), details);
  const restore = make("button", { type: "button", ariaLabel: `Restore ${name}` }, "Restore");
  restore.onclick = handler(async () => {
    show(await json("POST", `v1/snapshots/${number}/restore`));
    showMessage(`${name} restored.`);
  });
  const remove = make("button", { type: "button", ariaLabel: `Delete ${name}` }, "Delete");
  remove.onclick = handler(async () => {
    await request("DELETE", `v1/snapshots/${number}`);
    await showSnapshots();
  });
  return make("li", { className: "row" }, text, restore, remove);
}

// Handle input

byId("add-class").onsubmit = handler(async ({ target }) => {
  const name = target.elements.name.value.trim();
  await request("POST", "v1/classes", { classes: [name] });
  target.reset();
  show(await json("GET", "v1/status"));
  showMessage(`${name} added. Now add images of it.`);
});

byId("pause").onclick = handler(async () => {
  const background = await json("POST", "v1/background", { paused: current.background.activity !== "paused" });
  show({ ...current, background });
});

byId("add-snapshot").onsubmit = handler(async ({ target }) => {
  const { number } = await json("POST", "v1/snapshots", { title: target.elements.title.value.trim() });
  target.reset();
  await showSnapshots();
  showMessage(`Snapshot ${number} saved.`);
});

const download = (format, name) => handler(async () => {
  showMessage("Preparing the download …");
  const href = URL.createObjectURL(await (await request("GET", `v1/export?format=${format}`)).blob());
  make("a", { href, download: name }).click();
});
byId("export").onclick = download("folder", "model.zip");
byId("export-onnx").onclick = download("onnx", "model.onnx");

// Images dropped on a class, or pasted while it has the focus, are taught; all others are only classified.

const classOf = (element) => element.closest?.(".class")?.dataset.name;

document.addEventListener("change", ({ target }) => {
  if (target.type !== "file") return;
  images.add(target.files, classOf(target));
  target.value = "";
});

document.addEventListener("click", ({ target }) => {
  if (target.matches("button.camera")) openCamera(classOf(target), target.parentElement.querySelector("input"));
});

document.addEventListener("paste", (event) => {
  const { files } = event.clipboardData;
  if (files.length === 0) return;
  event.preventDefault();
  images.add(files, classOf(event.target));
});

document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.querySelector(".over")?.classList.remove("over");
  (event.target.closest?.(".drop") ?? byId("ask")).classList.add("over");
});

document.addEventListener("dragleave", ({ relatedTarget }) => {
  if (relatedTarget === null) document.querySelector(".over")?.classList.remove("over");
});

document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.querySelector(".over")?.classList.remove("over");
  images.add(event.dataTransfer.files, classOf(event.target));
});

listen({
  connected(status) {
    if (current !== null && status.classes.length < current.classes.length) location.reload(); // another state folder
    if (document.body.dataset.server === "disconnected") showMessage("Connected again.");
    if (current === null) Promise.allSettled([images.openUnlabelled()]);
    document.body.dataset.server = "connected";
    byId("disconnected").hidden = true;
    byId("server").textContent = "Connected";
    show(status);
    update.snapshots();
    update.memory();
  },
  disconnected(reason) {
    const since = current === null ? "" : ` This page shows the state at ${clock(Date.now() / 1000)}.`;
    const text = `Disconnected: ${reason}.${since} Reconnecting …`;
    if (document.body.dataset.server !== "disconnected") byId("disconnected").textContent = text;
    document.body.dataset.server = "disconnected";
    byId("disconnected").hidden = false;
    byId("server").textContent = "Disconnected";
  },
  status(status) {
    history.push(status);
    if (history.length > MAX_POINTS) history.splice(mostRedundant(history), 1);
    if (status.time >= current.time) show({ ...current, ...status, classes: changedClasses(status.classes) });
  },
  notice({ time, kind, text }) {
    byId("notices").prepend(make("li", {}, make("time", {}, clock(time)), ` ${kind.replace("_", " ")}: ${text}`));
    [...byId("notices").children].slice(MAX_NOTICES).forEach((item) => item.remove());
  },
});
