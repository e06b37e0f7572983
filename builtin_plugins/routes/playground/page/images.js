// Images of the next message: pasted, dropped or chosen. They stay in this page until it is sent.

import { make } from "./texts.js";

const $ = (id) => document.getElementById(id);
let urls = [];
let enabled = false;

/** Lets the user add images, if the model takes them. */
export function enableImages(on) {
  enabled = on;
  $("add-image").hidden = !on;
  $("image-suggestion").hidden = !on;
  $("message-form").classList.toggle("images", on);
}

export const hasImages = () => urls.length > 0;

/** Returns the images and removes them from the message. */
export function takeImages() {
  const taken = urls;
  setImages([]);
  return taken;
}

export function setImages(images) {
  urls = images;
  $("images").replaceChildren(...urls.map((url, index) => {
    const button = make("button");
    button.type = "button";
    button.title = "Remove the image";
    button.setAttribute("aria-label", `Remove image ${index + 1}`);
    button.append(thumbnail(url));
    button.addEventListener("click", () => setImages(urls.filter((_, other) => other !== index)));
    return button;
  }));
}

/** Returns a small view of an image. */
export function thumbnail(url) {
  const image = make("img", "thumbnail");
  image.src = url;
  image.alt = "";
  return image;
}

/** Returns the content of a message: its text, or parts if it has images. */
export function contentOf(text, images) {
  if (!images.length) return text;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

function readFile(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

/** Adds the images among the files to the message. */
export async function addFiles(files) {
  const images = [...files].filter((file) => file.type.startsWith("image/"));
  const added = await Promise.all(images.map(readFile));
  if (added.length) setImages([...urls, ...added]);
}

function addFrom(event, transfer) {
  const files = transfer?.files ?? [];
  if (!enabled || !files.length) return;
  event.preventDefault(); // the browser would open the file
  addFiles(files);
}

$("add-image").addEventListener("click", () => $("image-files").click());
$("image-files").addEventListener("change", async (event) => {
  await addFiles(event.target.files);
  event.target.value = ""; // so that the same file can be chosen again
});
document.addEventListener("paste", (event) => addFrom(event, event.clipboardData));
document.addEventListener("dragover", (event) => {
  if (enabled && event.dataTransfer?.types.includes("Files")) event.preventDefault();
});
document.addEventListener("drop", (event) => addFrom(event, event.dataTransfer));
