// Image files: which are images, smaller copies of them, ids.
import { make, showError } from "./dom.js";

const MAX_SIDE = 512; // pixels; the model sees fewer, and resizing removes the metadata of photos

/** The files that are images. */
export function imagesOf(files) {
  const images = [...files].filter((file) => file.type.startsWith("image/"));
  const others = [...files].filter((file) => !images.includes(file));
  if (others.length > 0) showError(`Not an image: ${others.map(({ name }) => name).join(", ")}.`);
  return images;
}

/** The image, resized if a side is longer than MAX_SIDE. */
export async function shrink(blob) {
  const bitmap = await createImageBitmap(blob).catch(() => {
    throw new Error("the browser cannot read this image");
  });
  return Math.max(bitmap.width, bitmap.height) > MAX_SIDE ? toJpeg(bitmap, bitmap.width, bitmap.height) : blob;
}

export function toJpeg(picture, width, height) {
  const scale = Math.min(1, MAX_SIDE / Math.max(width, height));
  const canvas = make("canvas", { width: width * scale, height: height * scale });
  const context = canvas.getContext("2d");
  context.fillStyle = "white"; // behind transparent pixels, as in the service; JPEG would make them black
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
}

/** The body of a request with an image, and other fields. */
export function formOf(fields) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  return form;
}

/** `crypto.randomUUID` is only available over HTTPS and on loopback. */
export const newId = () => [...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36)).join("-");
