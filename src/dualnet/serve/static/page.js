// The page: shows the events of the service, and sends what the user does.
import { json, listen, request } from "./api.js";
import { draw } from "./chart.js";
import * as classes from "./classes.js";
import { byId, clock, colour, handler, make, plural, showError, showMessage, throttle } from "./dom.js";
import * as images from "./images.js";
import "./live.js";
import * as use from "./use.js";

const [MAX_POINTS, MAX_CURVES, MAX_NOTICES] = [1400, 20, 5];
const ACTIVITIES = { // of the background; those that are not here say nothing to the user
  paused: "Improving in the background: paused.",
  "nothing to learn from": "Improving in the background: waiting for images.",
  "all steps done": "Improved in the background.",
  flat: "Improved in the background.",
  learning: "Improving in the background.",
};

const history = []; // status events, oldest first
let current = null; // the latest status
let backlog = null; // when images began to wait, and how many were learned by then

// Show the state of the service

const update = {
  predictions: throttle(2000, images.refresh),
  curves: throttle(500, showCurves),
  snapshots: throttle(500, showSnapshots),
};

function show(status) {
  const before = current;
  current = status;
  classes.update(status.classes);
  showProgress();
  const { activity } = status.background;
  byId("background").hidden = !(activity in ACTIVITIES) || !classes.all().some(({ learned }) => learned > 0);
  byId("background").querySelector("span").textContent = ACTIVITIES[activity] ?? "";
  byId("pause").textContent = activity === "paused" ? "Resume" : "Pause";
  update.curves();
  if (before?.version !== status.version) update.predictions();
  if (status.unlabelled > 0 && status.waiting === 0) images.updateNext();
}

/** How many images are learned, and how long the others will take. */
function showProgress() {
  if (current === null) return;
  const rows = classes.all();
  const [learned, tests, tested] = ["learned", "held_out", "tested"].map((key) => sum(rows, (row) => row[key]));
  const waiting = sum(rows, (row) => row.waiting) + classes.sending();
  if (waiting === 0) backlog = null;
  else backlog ??= { time: Date.now(), learned };
  const right = sum(rows, (row) => Math.round(((row.held_out_accuracy ?? 0) * row.tested) / 100));
  const result = tested > 0 ? `: ${right} of ${tested} right` : "";
  const test = tests > 0 ? ` ${tests} more (dashed) ${tests === 1 ? "tests" : "test"} the model${result}.` : "";
  const isEarly = rows.filter((row) => row.learned > 0).length < 2;
  const done = isEarly ? " Predictions need two classes with images." : test;
  const line =
    waiting > 0 ? `${learned} of ${plural(learned + tests + waiting, "image")} learned${timeLeft(learned, waiting)}`
    : learned === 0 ? "Nothing to learn yet."
    : `${learned === 1 ? "1 image" : `All ${learned} images`} learned.${done}`;
  byId("progress").ariaBusy = `${waiting > 0}`; // screen readers hear the end
  byId("progress").textContent = current.learner === "running" ? line : "The learner is restarting.";
  Object.assign(document.querySelector("progress"), { max: Math.max(1, learned + tests + waiting), value: learned + tests });
  byId("try").classList.toggle("early", isEarly);
  byId("try-hint").textContent = isEarly
    ? "Once two classes have learned images, new ones are classified here."
    : "Drop or paste new images here, or use the camera. If the answer is wrong, click the right class.";
  use.update(rows);
}

const sum = (rows, value) => rows.reduce((total, row) => total + value(row), 0);

function timeLeft(learned, waiting) {
  const seconds = (Date.now() - backlog.time) / 1000;
  const left = (seconds * waiting) / (learned - backlog.learned);
  if (seconds < 1 || !(left < Infinity)) return "";
  return left < 10 ? ", a few seconds left" : left < 90 ? `, about ${10 * Math.round(left / 10)} s left` : `, about ${Math.round(left / 60)} min left`;
}

document.addEventListener("classes", showProgress);
classes.connect(async () => show(await json("GET", "v1/status")));

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
  if (!byId("curves").open) return;
  const times = history.map((status) => status.time);
  const measured = new Set(history.flatMap((status) => Object.keys(status.accuracy)));
  const shown = classes.all().filter(({ number }) => measured.has(`${number}`)).slice(-MAX_CURVES);
  const accuracies = shown.map(({ number, name, tested }) =>
    line(`${name} (${plural(tested, "image")})`, number - 1, (status) => status.accuracy[number]),
  );
  draw(byId("accuracy"), accuracies, times, 100);
  byId("no-curves").hidden = history.length > 0;
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
  target.reset();
  await classes.add(name);
  if (matchMedia("(pointer: fine)").matches) target.elements.name.focus(); // elsewhere a keyboard would cover the card
});

byId("curves").ontoggle = update.curves;

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

// Images dropped on a class, or pasted while it has the focus, are taught; all others are only classified.

const classOf = (element) => element.closest?.(".class")?.dataset.name;

function take(files, element) {
  const name = classOf(element);
  if (name === undefined) images.add(files);
  else classes.teach(files, name);
}

document.addEventListener("change", ({ target }) => {
  if (target.type !== "file") return;
  take(target.files, target);
  target.value = "";
});

document.addEventListener("paste", (event) => {
  const { files } = event.clipboardData;
  if (files.length === 0) return;
  event.preventDefault();
  take(files, event.target);
});

document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.querySelector(".over")?.classList.remove("over");
  (event.target.closest?.(".drop") ?? byId("try")).classList.add("over");
});

document.addEventListener("dragleave", ({ relatedTarget }) => {
  if (relatedTarget === null) document.querySelector(".over")?.classList.remove("over");
});

document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.querySelector(".over")?.classList.remove("over");
  take(event.dataTransfer.files, event.target);
});

listen({
  connected(status) {
    if (current !== null && status.classes.length < current.classes.length) location.reload(); // another state folder
    if (document.body.dataset.server === "disconnected") showMessage("Connected again.");
    document.body.dataset.server = "connected";
    byId("disconnected").hidden = true;
    byId("server").textContent = "Connected";
    show(status);
    update.snapshots();
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
