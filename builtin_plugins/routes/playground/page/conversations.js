// The list of conversations: open, search, rename, delete, export, import.

import { $, announce, make, makeButton } from "./dom.js";
import { all, put, remove } from "./store.js";
import { exported, imported } from "./tree.js";

let list = [];
let deleted = null;
let current = null;
let openConversation = () => {};

export async function save(conversation) {
  if (conversation === deleted) return; // an answer has ended after it was deleted
  if (!list.includes(conversation)) list.push(conversation);
  render();
  await put("conversations", conversation.id, conversation);
}

export function setCurrent(conversation) {
  current = conversation;
  render();
}

export const newest = () => [...list].sort((a, b) => b.updated - a.updated)[0] ?? null;

function matches(conversation, words) {
  const text = [
    conversation.title,
    ...Object.values(conversation.nodes).map((node) => node.text ?? ""),
  ]
    .join("\n")
    .toLowerCase();
  return words.every((word) => text.includes(word));
}

function render() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = list.filter((each) => matches(each, words)).sort((a, b) => b.updated - a.updated);
  $("conversations").replaceChildren(...found.map(row));
  $("no-conversations").hidden = found.length > 0;
  $("no-conversations").textContent = words.length
    ? "No conversation has these words."
    : "Conversations are stored in this browser.";
}

function row(conversation) {
  const item = make("li");
  const title = conversation.title || "New conversation";
  const open = makeButton(title, () => openConversation(conversation), { className: "open" });
  if (conversation === current) open.setAttribute("aria-current", "true");
  const rename = makeButton("✎", () => startRename(conversation, item), {
    name: `Rename ${title}`,
    className: "icon",
  });
  const drop = makeButton("×", () => removeConversation(conversation), {
    name: `Delete ${title}`,
    className: "icon",
  });
  item.append(open, rename, drop);
  return item;
}

function startRename(conversation, item) {
  const input = make("input");
  input.value = conversation.title;
  input.maxLength = 60;
  input.setAttribute("aria-label", "Title of the conversation");
  item.replaceChildren(input);
  let ended = false;
  const end = async (keep) => {
    if (ended) return; // the input also loses its focus when it goes
    ended = true;
    if (keep && input.value.trim()) conversation.title = input.value.trim();
    await put("conversations", conversation.id, conversation);
    render();
  };
  input.addEventListener("blur", () => end(true));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") end(true);
    if (event.key !== "Escape") return;
    event.stopPropagation(); // it stops an answer elsewhere
    end(false);
  });
  input.focus();
  input.select();
}

async function removeConversation(conversation) {
  list = list.filter((each) => each !== conversation);
  deleted = conversation;
  $("undo").hidden = false;
  $("undo-text").textContent = `Deleted “${conversation.title || "New conversation"}”.`;
  await remove("conversations", conversation.id);
  for (const id of Object.keys(conversation.nodes)) await remove("traces", id);
  if (conversation === current) openConversation(newest());
  render();
}

async function restore() {
  const restored = deleted;
  deleted = null;
  $("undo").hidden = true;
  await save(restored);
  openConversation(restored);
}

function exportAll() {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([exported(list)], { type: "application/json" }));
  link.download = `conversations-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function importFile(file, report) {
  try {
    const found = imported(await file.text());
    list.push(...found);
    for (const conversation of found) await put("conversations", conversation.id, conversation);
    announce(`${found.length} conversations are imported.`);
    openConversation(newest());
  } catch (error) {
    report(`${file.name}: ${error.message}`);
  }
}

/** Loads the list; `open` displays a conversation, or a new one for null. */
export async function connectConversations(open, report) {
  openConversation = open;
  list = await all("conversations");
  $("new").addEventListener("click", () => openConversation(null));
  $("search").addEventListener("input", render);
  $("undo-button").addEventListener("click", restore);
  $("export").addEventListener("click", exportAll);
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", async ({ target }) => {
    if (target.files[0]) await importFile(target.files[0], report);
    target.value = "";
  });
  render();
}
