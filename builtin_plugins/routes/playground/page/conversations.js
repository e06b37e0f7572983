// The list of conversations: open, search, rename, delete, export, import.

import { $, announce, make, makeButton } from "./dom.js";
import { all, put, remove } from "./store.js";
import { exported, imported, markdownOf } from "./tree.js";

let list = [];
let deleted = [];
let current = null;
let openConversation = () => {};

export async function save(conversation) {
  if (deleted.includes(conversation)) return; // an answer has ended after it was deleted
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
  const pinned = ({ pinned: is }) => Number(is ?? false);
  const found = list
    .filter((each) => matches(each, words))
    .sort((a, b) => pinned(b) - pinned(a) || b.updated - a.updated);
  $("conversations").replaceChildren(...found.map(row));
  $("delete-all").disabled = !list.length;
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
  const pin = makeButton(conversation.pinned ? "★" : "☆", () => togglePin(conversation), {
    name: `Pin ${title}`,
    className: "icon",
  });
  pin.setAttribute("aria-pressed", String(conversation.pinned ?? false));
  const share = makeButton("⭳", () => exportText(conversation), {
    name: `Export ${title} as Markdown`,
    className: "icon",
  });
  const rename = makeButton("✎", () => startRename(conversation, item), {
    name: `Rename ${title}`,
    className: "icon",
  });
  const drop = makeButton("×", () => removeConversations([conversation]), {
    name: `Delete ${title}`,
    className: "icon",
  });
  item.append(open, pin, share, rename, drop);
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

async function togglePin(conversation) {
  conversation.pinned = !conversation.pinned;
  render();
  await put("conversations", conversation.id, conversation);
}

async function removeConversations(removed) {
  list = list.filter((each) => !removed.includes(each));
  deleted = removed;
  const [first] = removed;
  $("undo").hidden = false;
  $("undo-text").textContent =
    removed.length > 1
      ? `Deleted ${removed.length} conversations.`
      : `Deleted “${first.title || "New conversation"}”.`;
  for (const conversation of removed) {
    await remove("conversations", conversation.id);
    for (const id of Object.keys(conversation.nodes)) await remove("traces", id);
  }
  if (removed.includes(current)) openConversation(newest());
  render();
}

async function restore() {
  const restored = deleted;
  deleted = [];
  $("undo").hidden = true;
  for (const conversation of restored) await save(conversation);
  openConversation(restored.at(-1));
}

/** Lets the user save a file. */
function download(name, type, text) {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function exportAll() {
  const day = new Date().toISOString().slice(0, 10);
  download(`conversations-${day}.json`, "application/json", exported(list));
}

function exportText(conversation) {
  const name = conversation.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "conversation";
  download(`${name}.md`, "text/markdown", markdownOf(conversation));
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
  $("delete-all").addEventListener("click", () => removeConversations(list));
  $("import").addEventListener("click", () => $("import-file").click());
  $("import-file").addEventListener("change", async ({ target }) => {
    if (target.files[0]) await importFile(target.files[0], report);
    target.value = "";
  });
  render();
}
