// The page: what comes from the service is shown, what a person does is sent.
import { json, listen, request } from "./api.js";
import { openCamera } from "./camera.js";
import { draw } from "./chart.js";
import * as classes from "./classes.js";
import { atMostEvery, byId, clock, colour, make, say, tried } from "./dom.js";
import * as images from "./images.js";

const [POINTS, CURVES, NOTICES] = [1400, 20, 5];
const ACTIVITIES = {
  off: "The background is off.",
  paused: "The background is paused.",
  "nothing to learn from": "The background waits for images.",
  "all steps done": "The background waits for more images.",
  flat: "The background rests: its loss does not fall any more.",
  learning: "The background is learning.",
};

const history = []; // status events, oldest first
let now = null;

// What comes from the service

const tell = {
  memory: atMostEvery(2000, classes.updateMemory),
  answers: atMostEvery(2000, images.refresh),
  curves: atMostEvery(500, showCurves),
  snapshots: atMostEvery(500, showSnapshots),
};

function show(status) {
  const before = now;
  now = status;
  classes.update(status.classes);
  const { activity } = status.background;
  byId("activity").textContent = status.learner === "running" ? ACTIVITIES[activity] : "The learner is restarted.";
  byId("pause").hidden = activity === "off";
  byId("pause").textContent = activity === "paused" ? "Resume" : "Pause";
  const waiting = status.waiting > 0 ? `, ${status.waiting} to be learned` : "";
  byId("counts").textContent = `${status.examples} images, ${status.unlabelled} of them without a class${waiting}.`;
  tell.curves();
  if (before?.version !== status.version) tell.answers();
  if (kept(before) !== kept(status)) tell.memory();
}

const kept = (status) => JSON.stringify(status?.classes.map((one) => [one.examples, one.in_memory]));

/** The place of the one whose neighbours are closest in time, as the service chooses what it drops. */
function closest(points) {
  const gaps = points.slice(2).map((point, place) => point.time - points[place].time);
  return 1 + gaps.indexOf(Math.min(...gaps));
}

const line = (name, index, value) => ({ name, colour: colour(index), values: history.map(value) });

async function showCurves() {
  const times = history.map((status) => status.time);
  const accuracies = classes.names().map((name, index) => line(name, index, (status) => status.accuracy.get(name)));
  draw(byId("accuracy"), accuracies.slice(-CURVES), times, 100);
  const kinds = [...new Set(history.flatMap((status) => Object.keys(status.losses)))];
  const losses = kinds.map((name, index) => line(name.replace("_", " "), index, (status) => status.losses[name]));
  draw(byId("losses"), losses.filter(({ name }) => name !== "slow"), times);
  draw(byId("slow"), losses.filter(({ name }) => name === "slow"), times);
  draw(byId("steps"), [line("steps", 0, (status) => status.background.steps || null)], times);
}

async function showSnapshots() {
  byId("snapshot-list").replaceChildren(...(await json("GET", "/v1/snapshots")).reverse().map(snapshotItem));
}

function snapshotItem({ number, title, time, classes: names }) {
  const name = title || `Snapshot ${number}`;
  const about = ` ${new Date(1000 * time).toLocaleString()}, ${names.length} classes`;
  const text = make("span", {}, make("strong", {}, name), about);
  const restore = make("button", { type: "button", ariaLabel: `Restore ${name}` }, "Restore");
  restore.onclick = tried(async () => {
    show(await json("POST", `/v1/snapshots/${number}/restore`));
    say(`${name} is restored.`);
  });
  const remove = make("button", { type: "button", ariaLabel: `Delete ${name}` }, "Delete");
  remove.onclick = tried(async () => {
    await request("DELETE", `/v1/snapshots/${number}`);
    await showSnapshots();
  });
  return make("li", { className: "row" }, text, restore, remove);
}

// What a person does

byId("add-class").onsubmit = tried(async ({ target }) => {
  const name = target.elements.name.value.trim();
  await request("POST", "/v1/classes", { classes: [name] });
  target.reset();
  show(await json("GET", "/v1/status"));
  say(`${name} is added: give it some images.`);
});

byId("pause").onclick = tried(async () => {
  const background = await json("POST", "/v1/background", { paused: now.background.activity !== "paused" });
  show({ ...now, background });
});

byId("add-snapshot").onsubmit = tried(async ({ target }) => {
  const { number } = await json("POST", "/v1/snapshots", { title: target.elements.title.value.trim() });
  target.reset();
  await showSnapshots();
  say(`Snapshot ${number} is taken.`);
});

const download = (format, name) => tried(async () => {
  say("The model is being packed …");
  const href = URL.createObjectURL(await (await request("GET", `/v1/export?format=${format}`)).blob());
  make("a", { href, download: name }).click();
});
byId("export").onclick = download("folder", "model.zip");
byId("export-onnx").onclick = download("onnx", "model.onnx");

// Images go into the class on which they are dropped, or in which the focus is; elsewhere they are asked about.

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
  here(status) {
    if (now !== null && status.classes.length < now.classes.length) location.reload(); // another state folder
    if (document.body.dataset.server === "gone") say("The server answers again.");
    if (now === null) Promise.allSettled([images.openUnlabelled()]);
    document.body.dataset.server = "here";
    byId("gone").hidden = true;
    byId("server").textContent = "Connected";
    show(status);
    tell.snapshots();
    tell.memory();
  },
  gone(reason) {
    const since = now === null ? "" : ` What you see is from ${clock(Date.now() / 1000)}.`;
    const text = `No connection: ${reason}.${since} Trying again …`;
    if (document.body.dataset.server !== "gone") byId("gone").textContent = text;
    document.body.dataset.server = "gone";
    byId("gone").hidden = false;
    byId("server").textContent = "No connection";
  },
  status(status) {
    const accuracy = new Map(status.classes.map((one) => [one.name, one.held_out_accuracy]));
    history.push({ ...status, accuracy });
    if (history.length > POINTS) history.splice(closest(history), 1);
    show(status);
  },
  notice({ time, kind, text }) {
    byId("notices").prepend(make("li", {}, make("time", {}, clock(time)), ` ${kind.replace("_", " ")}: ${text}`));
    [...byId("notices").children].slice(NOTICES).forEach((item) => item.remove());
  },
});
