// The conversation: sends requests and displays streamed answers.

import { addFiles, contentOf, hasImages, setImages, takeImages, thumbnail } from "./images.js";
import { codeBlock, indentJson, make, renderText } from "./texts.js";

const $ = (id) => document.getElementById(id);
const fields = $("fields"), log = $("log"), prompt = $("prompt"), send = $("send");
let messages = [];
let pendingCalls = []; // tool calls without a result
let controller = null;

// --- Requests

function number(name) {
  const value = fields.elements[name].value;
  return value === "" ? undefined : Number(value);
}

function json(name) {
  const field = fields.elements[name];
  field.setCustomValidity("");
  if (!field.value.trim()) return undefined;
  try {
    return JSON.parse(field.value);
  } catch (error) {
    field.setCustomValidity(`This is not JSON: ${error.message}`);
    return undefined;
  }
}

function validate() {
  if (fields.checkValidity()) return;
  switchView("settings");
  fields.reportValidity(); // focuses the field and displays the error
  const field = fields.querySelector(":invalid");
  throw new Error(`${field.labels[0].firstChild.textContent.trim()}: ${field.validationMessage}`);
}

function requestBody() {
  const system = fields.elements.system.value;
  const schema = json("schema"), tools = json("tools");
  validate();
  return JSON.stringify({
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
    temperature: number("temperature"),
    top_p: number("top_p"),
    max_tokens: number("max_tokens"),
    seed: number("seed"),
    tools,
    response_format: schema && { type: "json_schema", json_schema: { name: "answer", schema } },
  });
}

export function headers() {
  const key = fields.elements.key.value;
  return key ? { Authorization: `Bearer ${key}` } : {};
}

// --- Answers

function addMessage(role, name) {
  const article = make("article", role);
  article.setAttribute("aria-label", name);
  $("empty").hidden = true;
  log.append(article);
  return article;
}

class Answer {
  constructor() {
    this.conversation = messages; // "New" may replace it during the answer
    this.message = { role: "assistant", content: "" };
    this.reasoning = "";
    this.calls = [];
    this.started = performance.now();
    this.article = addMessage("assistant", "Answer");
    this.article.setAttribute("aria-busy", "true");
    this.thought = make("details", "thought");
    this.thought.hidden = true;
    this.thoughtSummary = make("summary", "", "Thinking");
    this.thoughtText = make("div", "text");
    this.thought.append(this.thoughtSummary, this.thoughtText);
    this.text = make("div", "text");
    this.tools = make("div");
    this.foot = make("footer", "", "…");
    this.article.append(this.thought, this.text, this.tools, this.foot);
  }

  addEvent(event) {
    if (event.error) throw new Error(event.error.message ?? "the answer was interrupted");
    if (event.usage) this.usage = event.usage;
    const choice = event.choices?.[0];
    if (!choice) return;
    const { content, reasoning, reasoning_content, tool_calls } = choice.delta ?? {};
    this.reasoning += reasoning ?? reasoning_content ?? "";
    this.message.content += content ?? "";
    for (const part of tool_calls ?? []) {
      const call = (this.calls[part.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
      call.id ||= part.id ?? "";
      call.function.name += part.function?.name ?? "";
      call.function.arguments += part.function?.arguments ?? "";
    }
    this.finishReason = choice.finish_reason ?? this.finishReason;
    if (content || tool_calls) this.hasContent = true;
    if (content || reasoning || reasoning_content || tool_calls) this.firstToken ??= performance.now();
    this.animationFrame ||= requestAnimationFrame(() => this.render());
  }

  render(ended = false) {
    this.animationFrame = 0;
    const atBottom = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    this.thought.hidden = !this.reasoning.trim();
    this.thoughtSummary.textContent = this.hasContent || ended ? "Thoughts" : "Thinking…";
    this.thoughtText.textContent = this.reasoning.trim();
    renderText(this.text, this.message.content.trim(), ended);
    this.tools.replaceChildren(...this.calls.filter(Boolean).map((call) => {
      const card = make("section", "call");
      card.append(make("h3", "", call.function.name));
      card.append(codeBlock(indentJson(call.function.arguments) || call.function.arguments, "arguments"));
      return card;
    }));
    if (atBottom) log.scrollTop = log.scrollHeight;
  }

  finish(note) {
    cancelAnimationFrame(this.animationFrame);
    this.render(true);
    const seconds = (performance.now() - this.firstToken) / 1000, tokens = this.usage?.completion_tokens;
    this.foot.textContent = [
      tokens && `${tokens} tokens`,
      tokens > 1 && seconds > 0.005 && `${Math.round(tokens / seconds)}/s`,
      this.firstToken && `first after ${Math.round(this.firstToken - this.started)} ms`,
      this.usage?.prompt_tokens && `prompt ${this.usage.prompt_tokens}`,
      note ?? { length: "cut at max tokens" }[this.finishReason],
    ].filter(Boolean).join(" · ");
    this.article.removeAttribute("aria-busy");
    if (this.calls.length) this.message.tool_calls = this.calls.filter(Boolean);
    if (!this.message.content && !this.calls.length) return;
    this.conversation.push(this.message);
    if (this.conversation === messages) pendingCalls = note ? [] : [...(this.message.tool_calls ?? [])];
  }
}

function showError(text) {
  const alert = addMessage("failed", "Error");
  alert.setAttribute("role", "alert");
  alert.textContent = text;
  log.scrollTop = log.scrollHeight;
}

// --- Conversation

async function* readEvents(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (buffer + value).split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").find((line) => line.startsWith("data:"))?.slice(5).trim();
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function requestAnswer() {
  const body = requestBody();
  controller = new AbortController();
  setBusy(true);
  const answer = new Answer();
  log.scrollTop = log.scrollHeight;
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST",
      headers: { ...headers(), "Content-Type": "application/json" },
      body,
      signal: controller.signal,
    });
    if (!response.ok) throw new Error(await errorMessage(response));
    for await (const event of readEvents(response)) answer.addEvent(event);
    answer.finish();
  } catch (error) {
    const stopped = error.name === "AbortError";
    answer.finish(stopped ? "stopped" : "interrupted");
    if (!answer.firstToken) answer.article.remove();
    if (!stopped) showError(error.message);
  } finally {
    controller = null;
    setBusy(false);
  }
}

async function errorMessage(response) {
  if (response.status === 401) {
    switchView("settings");
    fields.elements.key.focus();
    return "This server requires an API key: enter it under Settings.";
  }
  const body = await response.json().catch(() => ({}));
  return body.error?.message ?? `The server answered ${response.status}.`;
}

async function submit() {
  const text = prompt.value.trim();
  const canSend = text || (hasImages() && !pendingCalls.length); // a result of a tool is a text
  if (!canSend || controller) return;
  const call = pendingCalls.shift();
  const images = call ? [] : takeImages();
  const role = call ? "tool" : "user";
  const article = addMessage(role, call ? `Result of ${call.function.name}` : "You");
  article.append(...images.map(thumbnail), make("div", "text", text));
  const content = contentOf(text, images);
  messages.push(call ? { role, tool_call_id: call.id, content } : { role, content });
  prompt.value = "";
  fitPrompt();
  if (!pendingCalls.length) {
    const conversation = messages, before = messages.length;
    try {
      await requestAnswer();
    } catch (error) { // the request is invalid, and was not sent
      showError(error.message);
    }
    const unanswered = conversation === messages && messages.length === before;
    if (unanswered && !call) { // the user can edit the message and send it again
      messages.pop();
      article.remove();
      prompt.value ||= text;
      setImages(images);
      fitPrompt();
    }
  }
  updatePlaceholder();
}

function setBusy(on) {
  send.textContent = on ? "Stop" : "Send";
  send.classList.toggle("stop", on);
  $("announcement").textContent = on ? "Generating." : "The answer is complete.";
}

function updatePlaceholder() {
  const call = pendingCalls[0];
  prompt.placeholder = call ? `Result of ${call.function.name}` : "Message";
}

function fitPrompt() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function switchView(view) {
  document.body.dataset.view = view;
  for (const button of document.querySelectorAll("nav button"))
    button.setAttribute("aria-pressed", String(button.dataset.view === view));
}

$("message-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (controller) controller.abort();
  else submit();
});
prompt.addEventListener("input", fitPrompt);
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => event.key === "Escape" && controller?.abort());
fields.addEventListener("submit", (event) => event.preventDefault());
$("clear").addEventListener("click", () => {
  controller?.abort();
  messages = [];
  pendingCalls = [];
  setImages([]);
  log.replaceChildren($("empty"));
  $("empty").hidden = false;
  updatePlaceholder();
  prompt.focus();
});
for (const button of document.querySelectorAll("#suggestions button"))
  button.addEventListener("click", async () => {
    const image = button.querySelector("img");
    if (image) await addFiles([await (await fetch(image.src)).blob()]);
    prompt.value = button.textContent;
    submit();
  });
for (const button of document.querySelectorAll("nav button"))
  button.addEventListener("click", () => switchView(button.dataset.view));
