// The conversation on display: sends messages, streams answers, edits, regenerates, branches.

import { readEvents, request, requestJson } from "./api.js";
import { addFiles, connectFiles, hasFiles, setFiles, takeFiles } from "./attachments.js";
import { save, setCurrent } from "./conversations.js";
import { $, announce, formatSeconds, formatWhole, make, makeButton } from "./dom.js";
import { recordTrace } from "./inspector.js";
import { AnswerView, atEnd, startEdit, userView } from "./messages.js";
import { focusField, hasField, requestFields, setValues, values } from "./settings.js";
import { put } from "./store.js";
import {
  addNode,
  messagesOf,
  newConversation,
  parentOf,
  pathOf,
  pendingCalls,
  removeNode,
  select,
  siblingsOf,
} from "./tree.js";
import { isNarrow, switchView } from "./views.js";

const MAX_DISPLAYED = 60; // messages that are drawn when a conversation is opened
const log = $("log");
const prompt = $("prompt");
const send = $("send");
let conversation = newConversation();
let controller = null;

const actions = {
  siblings: (node) => siblingsOf(conversation, node),
  select: async (node) => {
    if (controller) return;
    select(conversation, node);
    await save(conversation);
    render();
    $(`message-${node.id}`)?.querySelector(".branch + button")?.focus();
  },
  edit: async (node, text) => {
    if (controller) return;
    if (node.role === "assistant") {
      const { reasoning, calls, model } = node;
      const fields = { role: "assistant", text, reasoning, calls, model, footer: "edited" };
      addNode(conversation, parentOf(conversation, node), fields);
      await save(conversation);
      render();
      return;
    }
    const next = addNode(conversation, parentOf(conversation, node), {
      role: "user",
      text,
      files: node.files,
    });
    render();
    await generate(next);
  },
  regenerate: async (node) => {
    if (!controller) await generate(parentOf(conversation, node));
  },
  resume: async (node) => {
    if (!controller) await generate(parentOf(conversation, node), node);
  },
};

/** Displays a conversation, or a new one for null. */
export function openConversation(next) {
  controller?.abort();
  conversation = next ?? newConversation();
  if (next) setValues(next.settings);
  setCurrent(conversation);
  setFiles([]);
  render();
  log.scrollTop = log.scrollHeight;
  switchView("chat");
  prompt.focus();
}

function render(count = MAX_DISPLAYED) {
  const path = pathOf(conversation);
  const views = path.slice(-count).map((node) => {
    if (node.role !== "assistant") return userView(node, actions);
    return new AnswerView(node, actions).finish().article;
  });
  $("empty").hidden = views.length > 0;
  const earlier = path.length - views.length;
  if (earlier > 0)
    views.unshift(
      makeButton(`Show ${earlier} earlier messages`, () => render(path.length), {
        className: "earlier",
      }),
    );
  log.replaceChildren($("empty"), ...views);
  updatePlaceholder();
}

// --- Answers

/** Generates an answer to a message, or the rest of an answer that was cut. */
async function generate(parent, cut = null) {
  clearErrors();
  let fields;
  try {
    fields = requestFields();
  } catch (error) {
    showError(error, parent, cut);
    return;
  }
  const { system } = values();
  conversation.settings = values();
  const owner = conversation; // another one may be opened meanwhile
  const model = $("model").value;
  const node =
    cut ?? addNode(owner, parent, { role: "assistant", reasoning: "", calls: [], model });
  const noteBefore = node.note;
  const displayed = new Set(pathOf(owner).map(({ id }) => `message-${id}`));
  for (const element of log.querySelectorAll("article"))
    if (!displayed.has(element.id) || element.id === `message-${cut?.id}`) element.remove();
  const view = new AnswerView(node, actions).start();
  $("empty").hidden = true;
  log.append(view.article);
  log.scrollTop = log.scrollHeight;
  // the button that was pressed has gone
  if (document.activeElement === document.body) send.focus();
  controller = new AbortController();
  setBusy(true);
  const messages = messagesOf(owner, cut ?? parent, system);
  const stream = new Stream(node, view);
  let failure = null;
  try {
    const body = {
      model: model || undefined,
      messages,
      stream: true,
      stream_options: { include_usage: true },
      ...fields,
      ...(cut ? { continue_final_message: true, add_generation_prompt: false } : {}),
    };
    const response = await request("v1/chat/completions", { body, signal: controller.signal });
    for await (const event of readEvents(response)) stream.add(event);
    stream.finish();
  } catch (error) {
    const stopped = error.name === "AbortError";
    stream.finish(stopped ? "stopped" : "interrupted");
    if (!stopped) failure = error;
  }
  controller = null;
  setBusy(false);
  const hasImages = messages.some(({ content }) => Array.isArray(content));
  const recorded = {
    tokens: stream.tokens,
    messages: hasImages ? null : messages,
    tools: fields.tools,
    model,
  };
  if (node.answerId) recordTrace(node, recorded);
  const isEmpty = !stream.firstMs;
  if (isEmpty && cut) node.note = noteBefore;
  else if (isEmpty) removeNode(owner, node);
  await save(owner);
  if (owner !== conversation) return;
  const isAtEnd = atEnd(log);
  if (isEmpty) render();
  else view.finish();
  if (isAtEnd) log.scrollTop = log.scrollHeight;
  if (failure) showError(failure, parent, cut);
  updatePlaceholder();
}

/** Adds the events of a stream to an answer. */
class Stream {
  constructor(node, view) {
    this.node = node;
    this.view = view;
    this.tokens = [];
    this.numEvents = 0;
    this.startedMs = performance.now();
    node.answerId = undefined; // a continued answer has that of its last request
  }

  add(event) {
    const { node } = this;
    node.answerId ??= event.id;
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    const {
      content,
      reasoning,
      reasoning_content: thought,
      tool_calls: calls,
    } = choice.delta ?? {};
    node.reasoning += reasoning ?? thought ?? "";
    node.text += content ?? "";
    for (const part of calls ?? []) {
      const call = (node.calls[part.index] ??= {
        id: "",
        type: "function",
        function: { name: "", arguments: "" },
      });
      call.id ||= part.id ?? "";
      // a custom tool takes a text
      const { name = "", arguments: json = "", input = "" } = part.function ?? part.custom ?? {};
      call.function.name += name;
      call.function.arguments += json + input;
    }
    this.finishReason = choice.finish_reason ?? this.finishReason;
    const now = performance.now();
    for (const { token, logprob, top_logprobs: others } of choice.logprobs?.content ?? [])
      this.tokens.push([
        token,
        logprob,
        now - this.startedMs,
        others.map((each) => [each.token, each.logprob]),
      ]);
    if (!content && !reasoning && !thought && !calls) return;
    this.numEvents += 1;
    this.firstMs ??= now;
    this.lastMs = now;
    this.view.progress = this.speed();
    this.view.schedule(log);
  }

  /** Returns the tokens so far and their speed. */
  speed() {
    const seconds = (this.lastMs - this.firstMs) / 1000;
    const exact = this.usage?.completion_tokens ?? this.tokens.length;
    const tokens = exact || this.numEvents; // a stopped answer has no usage: an event has a token
    return [
      tokens && `${exact ? "" : "about "}${formatWhole(tokens)} tokens`,
      tokens > 1 && seconds > 0.005 && `${Math.round((tokens - 1) / seconds)}/s`,
    ]
      .filter(Boolean)
      .join(" · ");
  }

  finish(note = "") {
    const { node } = this;
    node.calls = node.calls.filter(Boolean);
    node.footer = [
      this.speed(),
      this.firstMs && `first after ${formatSeconds((this.firstMs - this.startedMs) / 1000)}`,
      this.usage && `prompt ${formatWhole(this.usage.prompt_tokens)}`,
    ]
      .filter(Boolean)
      .join(" · ");
    node.note = note || (this.finishReason === "length" ? "cut at max tokens" : "");
  }
}

function setBusy(on) {
  send.textContent = on ? "Stop" : "Send";
  send.classList.toggle("stop", on);
  announce(on ? "Generating." : "The answer is complete.");
}

// --- Errors

export function showError(error, parent = null, cut = null) {
  clearErrors();
  const alert = make("div", "failed");
  alert.setAttribute("role", "alert");
  alert.append(make("p", "", error.message));
  if (parent) alert.append(makeButton("Try again", () => generate(parent, cut)));
  $("problem").replaceChildren(alert);
  log.scrollTop = log.scrollHeight; // the error takes room of the log
  if (isNarrow() || !hasField(error.field)) return; // the field would hide the error
  switchView("settings");
  focusField(error.field);
}

function clearErrors() {
  $("problem").replaceChildren();
}

// --- Messages

async function submit() {
  const text = prompt.value.trim();
  const [call] = pendingCalls(conversation);
  if (controller || (!text && (call || !hasFiles()))) return; // a result of a tool is a text
  const files = call ? [] : takeFiles();
  const fields = call
    ? { role: "tool", callId: call.id, callName: call.function.name, text }
    : { role: "user", text, files };
  const node = addNode(conversation, pathOf(conversation).at(-1) ?? null, fields);
  $("empty").hidden = true;
  log.append(userView(node, actions));
  log.scrollTop = log.scrollHeight;
  prompt.value = "";
  fitPrompt();
  updatePlaceholder();
  if (pendingCalls(conversation).length) await save(conversation);
  else await generate(node);
}

function updatePlaceholder() {
  const [call] = pendingCalls(conversation);
  prompt.placeholder = call ? `Result of ${call.function.name}` : "Message";
}

function fitPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

/** Fills the list of models; `stored` is the one chosen last. */
export async function loadModels(stored) {
  const { data } = await requestJson("v1/models");
  const before = $("model").value || stored;
  $("model").replaceChildren(
    ...data.map(({ id }) => {
      const option = make("option", "", id);
      option.value = id;
      return option;
    }),
  );
  if (data.some(({ id }) => id === before)) $("model").value = before;
}

export function editLast() {
  const node = pathOf(conversation).findLast(({ role }) => role === "user");
  if (node && !controller) startEdit(node, $(`message-${node.id}`), actions);
}

export function regenerateLast() {
  const node = pathOf(conversation).at(-1);
  if (node?.role === "assistant") actions.regenerate(node);
}

/** Writes a text into the empty message field; the user sends it. */
export function fillMessage(text) {
  prompt.value ||= text;
  fitPrompt();
}

export const stop = () => controller?.abort();

export function connectChat() {
  connectFiles((text) => showError(new Error(text)));
  $("message-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (controller) stop();
    else submit();
  });
  prompt.addEventListener("input", fitPrompt);
  log.addEventListener("scroll", () => ($("to-end").hidden = atEnd(log)));
  $("to-end").addEventListener("click", () => (log.scrollTop = log.scrollHeight));
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "ArrowUp" && !prompt.value) {
      event.preventDefault();
      editLast();
    }
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    submit();
  });
  $("model").addEventListener("change", () => put("values", "model", $("model").value));
  for (const button of document.querySelectorAll("#suggestions button"))
    button.addEventListener("click", async () => {
      const image = button.querySelector("img");
      if (image)
        await addFiles([
          new File([await (await fetch(image.src)).blob()], "star.png", { type: "image/png" }),
        ]);
      prompt.value = button.textContent;
      submit();
    });
}
