// Starts the page: what is stored, then conversation and engine; and its keys.

import { headers } from "./api.js";
import {
  connectChat,
  editLast,
  fillMessage,
  loadModels,
  openConversation,
  regenerateLast,
  showError,
  stop,
} from "./chat.js";
import { loadHighlighter } from "./code.js";
import { connectConversations } from "./conversations.js";
import { $ } from "./dom.js";
import { watchEngine } from "./engine.js";
import { loadMath } from "./math.js";
import { connectSettings, focusField } from "./settings.js";
import { get, openStore } from "./store.js";
import { connectViews, isNarrow, switchView } from "./views.js";

connectViews();
const isStored = await openStore();
$("not-stored").hidden = isStored;
await connectSettings();
await connectConversations(openConversation, (text) => showError(new Error(text)));
connectChat();
openConversation(null);
fillMessage(new URLSearchParams(location.search).get("q") ?? "");
const stored = await get("values", "model");
let knownKey = null;
watchEngine(() => {
  // the key may come later
  const key = headers().Authorization ?? "";
  if (key === knownKey) return;
  knownKey = key;
  loadModels(stored).catch(() => (knownKey = null));
});

function openSystemPrompt() {
  switchView("settings");
  focusField("system");
}

function findConversation() {
  if (isNarrow()) switchView("chats");
  $("search").focus();
}

const SHORTCUTS = {
  KeyN: () => openConversation(null),
  KeyR: regenerateLast,
  KeyE: editLast,
  KeyS: openSystemPrompt,
};

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    $("prompt").focus();
  }
  if (event.key === "k" && (event.ctrlKey || event.metaKey) && !event.shiftKey) {
    event.preventDefault();
    findConversation();
  }
  if (!event.altKey || !event.shiftKey || !SHORTCUTS[event.code]) return;
  event.preventDefault();
  SHORTCUTS[event.code]();
});
// Before an answer needs them: their first use would be a long frame.
(globalThis.requestIdleCallback ?? setTimeout)(() => {
  loadMath();
  loadHighlighter();
});
document.body.dataset.ready = "";
