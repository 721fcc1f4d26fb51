// How to use the model that was taught: commands and code to copy, with downloads.
import { hasToken, request } from "./api.js";
import { byId, handler, make, showMessage } from "./dom.js";

const address = () => new URL("v1/predict", location.href).href;

const SNIPPETS = [
  ["HTTP", () => `curl ${hasToken() ? '-H "Authorization: Bearer TOKEN" ' : ""}-F image=@photo.jpg ${address()}`],
  ["Python", () => `import dualnet

model = dualnet.load("model")  # the folder in model.zip
prediction = model.predict(["photo.jpg"])[0]
print(prediction.name, prediction.probability)`],
  ["ONNX", () => `import json

import numpy as np
import onnxruntime
from PIL import Image, ImageOps

session = onnxruntime.InferenceSession("model.onnx")
names = json.loads(session.get_modelmeta().custom_metadata_map["class_names"])
side = session.get_inputs()[0].shape[-1]
image = ImageOps.exif_transpose(Image.open("photo.jpg")).convert("RGB")
image = ImageOps.fit(image, (side, side), Image.Resampling.BILINEAR)
images = np.asarray(image).transpose(2, 0, 1)[None]
probabilities = session.run(["probabilities"], {"images": images})[0][0]
print(names[probabilities.argmax()], probabilities.max())`],
];

/** Show the snippets once two classes have learned images. */
export function update(classes) {
  const learned = classes.filter((one) => one.learned > 0).map(({ name }) => name);
  byId("use-hint").textContent =
    learned.length >= 2
      ? `The model that tells ${learned.slice(0, -1).join(", ")} and ${learned.at(-1)} apart, in your own programs:`
      : "Once two classes have learned images, this shows how to use the model in your own programs.";
  for (const id of ["downloads", "snippets"]) byId(id).hidden = learned.length < 2;
  if (learned.length >= 2 && byId("snippets").childElementCount === 0) {
    byId("downloads").append(downloadButton("folder", "model.zip"), downloadButton("onnx", "model.onnx"));
    byId("snippets").append(...SNIPPETS.map(([title, code]) => snippet(title, code())));
  }
}

function snippet(title, text) {
  const code = make("pre", { tabIndex: 0, ariaLabel: `${title} snippet` }, text);
  code.setAttribute("role", "region");
  const copy = make("button", { type: "button", ariaLabel: `Copy the ${title} snippet` }, "Copy");
  copy.onclick = handler(async () => {
    getSelection().selectAllChildren(code); // browsers allow the clipboard only on loopback and over HTTPS
    await navigator.clipboard?.writeText(text);
    showMessage(navigator.clipboard ? "Copied." : "Selected: press Ctrl-C to copy.");
  });
  return make("details", {}, make("summary", {}, title), make("p", { className: "row" }, copy), code);
}

const downloadButton = (format, name) =>
  make("button", { type: "button", onclick: download(format, name) }, `Download ${name}`);

const download = (format, name) => handler(async () => {
  showMessage("Preparing the download …");
  const href = URL.createObjectURL(await (await request("GET", `v1/export?format=${format}`)).blob());
  make("a", { href, download: name }).click();
});
