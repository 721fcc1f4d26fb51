// Takes pictures with the camera of the machine; where a page may not use it, with the telephone's own camera program.
import { byId, make, say } from "./dom.js";
import { add } from "./images.js";

export async function openCamera(label, input) {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    if (navigator.mediaDevices) return say(`The camera cannot be used: ${error.message}.`);
    input.capture = "environment"; // over plain HTTP from another machine
    input.click();
    return input.removeAttribute("capture");
  }
  const [dialog, video] = [byId("camera"), byId("camera").querySelector("video")];
  byId("camera-title").textContent = label ? `Pictures of ${label}` : "What is it?";
  video.srcObject = stream;
  byId("shoot").onclick = () => shoot(video, label);
  dialog.onclose = () => stream.getTracks().forEach((track) => track.stop());
  dialog.showModal();
}

async function shoot(video, label) {
  const canvas = make("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  add([blob], label);
}
