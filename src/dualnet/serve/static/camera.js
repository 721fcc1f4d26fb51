// Takes photos in the page; where the browser does not allow that, with the camera app of the phone.
import { byId, make, showMessage } from "./dom.js";
import { add } from "./images.js";

export async function openCamera(label, input) {
  let stream;
  try {
    stream = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
  } catch (error) {
    if (navigator.mediaDevices) return showMessage(`The camera is not available: ${error.message}.`);
    input.capture = "environment"; // a page from another machine over plain HTTP
    input.click();
    return input.removeAttribute("capture");
  }
  const [dialog, video] = [byId("camera"), byId("camera").querySelector("video")];
  byId("camera-title").textContent = label ? `Photos of ${label}` : "Take a photo to classify";
  video.srcObject = stream;
  byId("take-photo").onclick = () => takePhoto(video, label);
  dialog.onclose = () => stream.getTracks().forEach((track) => track.stop());
  dialog.showModal();
}

async function takePhoto(video, label) {
  const canvas = make("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
  add([blob], label);
}
