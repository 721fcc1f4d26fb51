// The live camera: predictions for what it shows, several times a second.
import { json, sleep } from "./api.js";
import { Bars } from "./bars.js";
import * as camera from "./camera.js";
import { teach } from "./classes.js";
import { byId, handler, make, showMessage } from "./dom.js";
import { formOf } from "./files.js";

const [INTERVAL, RETRY] = [200, 1000]; // ms

const video = make("video", { autoplay: true, playsInline: true, muted: true });
const bars = new Bars(video, (name) => teachPhoto(name)(), false);
const button = byId("live-button");

const teachPhoto = (name) => handler(async () => {
  await teach([await camera.photo(video)], name);
  showMessage(`This picture is taught as ${name}.`);
});

button.onclick = async () => {
  if (video.srcObject) return stop();
  if (!(await camera.start(video, document.querySelector("#try input[type=file]")))) return;
  byId("live").append(bars.element);
  button.textContent = "Stop the camera";
  run();
};

function stop() {
  camera.stop(video);
  bars.element.remove();
  button.textContent = "Live camera";
  button.focus();
}

bars.part(".delete").onclick = stop;
bars.part(".delete").ariaLabel = "Stop the camera";
bars.say("Starting …");

async function run() {
  while (video.srcObject) {
    try {
      await predict();
      await sleep(INTERVAL);
    } catch (error) {
      bars.say(`${error.message}.`, "error");
      await sleep(RETRY);
    }
  }
}

async function predict() {
  const image = document.hidden ? null : await camera.photo(video);
  if (image) bars.show((await json("POST", "v1/predict?top=1000", formOf({ image }))).predictions[0]);
}
