// The camera: one stream for all videos of the page that show it; buttons that record while they are held.
import { showError } from "./dom.js";
import { toJpeg } from "./files.js";

const RECORD_INTERVAL = 200; // ms between the photos of a recording

const videos = new Set();
let stream = null; // a promise

/** Show the camera in a video. Where the browser does not allow that, open the camera app of the phone by `input`. */
export async function start(video, input) {
  videos.add(video);
  try {
    stream ??= navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    video.srcObject = await stream;
  } catch (error) {
    [stream, video.srcObject] = [null, null];
    videos.delete(video);
    if (navigator.mediaDevices) showError(`The camera is not available: ${error.message}.`);
    else {
      input.capture = "environment"; // a page from another machine over plain HTTP
      input.click();
      input.removeAttribute("capture");
    }
  }
  return video.srcObject !== null;
}

export async function stop(video) {
  video.srcObject = null;
  if (!videos.delete(video) || videos.size > 0) return;
  const stopped = stream;
  stream = null;
  (await stopped).getTracks().forEach((track) => track.stop());
}

/** The present picture of a video, or null before there is one. */
export const photo = async (video) =>
  video.videoWidth > 0 ? toJpeg(video, video.videoWidth, video.videoHeight) : null;

/** Call an action again and again while a button is held, with the pointer or a key. */
export function whileHeld(button, action) {
  let timer = null;
  const end = () => (timer = clearInterval(timer));
  const begin = (event) => {
    if (event.button > 0 || event.repeat) return;
    end();
    action();
    timer = setInterval(action, RECORD_INTERVAL);
  };
  const isKey = ({ key }) => key === " " || key === "Enter";
  button.addEventListener("pointerdown", begin);
  for (const kind of ["pointerup", "pointercancel", "pointerleave", "blur", "keyup"]) button.addEventListener(kind, end);
  button.addEventListener("keydown", (event) => {
    if (!isKey(event)) return;
    event.preventDefault(); // no click
    begin(event);
  });
  button.addEventListener("click", ({ detail }) => detail === 0 && action()); // by assistive technology
  button.addEventListener("contextmenu", (event) => event.preventDefault()); // of a finger that rests
}
