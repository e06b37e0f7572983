// Files of the next message: pictures and texts, chosen, pasted or dropped. They stay in the
// browser.

import { $, announce, make } from "./dom.js";

const MAX_TEXT_BYTES = 1 << 20;
const MAX_PASTED = 4000; // characters; a longer text that is pasted becomes a file
let files = [];
let takesImages = false;
let onProblem = () => {};

/** Sets whether the model takes pictures. */
export function enableImages(on) {
  takesImages = on;
  $("image-suggestion").hidden = !on;
}

export const hasFiles = () => files.length > 0;

/** Returns the files and removes them from the message. */
export function takeFiles() {
  const taken = files;
  setFiles([]);
  return taken;
}

export function setFiles(next) {
  files = next;
  $("files").replaceChildren(
    ...files.map((file, index) => {
      const button = make("button", "file");
      button.type = "button";
      button.title = "Remove this file";
      button.setAttribute("aria-label", `Remove ${file.name}`);
      button.append(preview(file), make("span", "remove", "×"));
      button.addEventListener("click", () => {
        setFiles(files.filter((_, other) => other !== index));
        $("prompt").focus();
      });
      return button;
    }),
  );
}

/** Returns a small view of a file. */
export function preview(file) {
  if (file.kind === "text") return make("span", "file-name", file.name);
  const image = make("img", "thumbnail");
  image.src = file.url;
  image.alt = file.name;
  return image;
}

function readUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

async function read(file) {
  const name = file.name || "picture";
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") {
    if (!takesImages)
      throw new Error(`${name}: this model takes no pictures. Choose another model.`);
    return { kind: "image", name, url: await readUrl(file), text: "" };
  }
  if (file.size > MAX_TEXT_BYTES)
    throw new Error(
      `${name}: got ${file.size} bytes; expected at most ${MAX_TEXT_BYTES}. Attach a part of it.`,
    );
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new Error();
    return { kind: "text", name, text, url: "" };
  } catch {
    throw new Error(`${name}: it is neither text in UTF-8 nor a picture. Convert it first.`);
  }
}

/** Adds files to the message. */
export async function addFiles(given) {
  for (const result of await Promise.allSettled([...given].map(read))) {
    if (result.status === "rejected") onProblem(result.reason.message);
    else setFiles([...files, result.value]);
  }
  if (files.length) announce(`${files.length} files are attached.`);
}

/** Returns a file with a long text that is pasted into the message. */
function longText(event, transfer) {
  if (event.type !== "paste" || event.target !== $("prompt")) return [];
  const text = transfer?.getData("text/plain") ?? "";
  return text.length > MAX_PASTED ? [new File([text], "pasted.txt", { type: "text/plain" })] : [];
}

function addFrom(event, transfer) {
  const given = [...(transfer?.files ?? [])];
  if (!given.length) given.push(...longText(event, transfer));
  if (!given.length) return;
  event.preventDefault(); // the browser would open the file
  addFiles(given);
}

/** Lets the user choose, paste and drop files; `report` displays what is wrong with one. */
export function connectFiles(report) {
  onProblem = report;
  $("add-file").addEventListener("click", () => $("file-input").click());
  $("file-input").addEventListener("change", async (event) => {
    await addFiles(event.target.files);
    event.target.value = ""; // so that the same file can be chosen again
  });
  document.addEventListener("paste", (event) => addFrom(event, event.clipboardData));
  document.addEventListener("dragover", (event) => {
    if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
  });
  document.addEventListener("drop", (event) => addFrom(event, event.dataTransfer));
}
