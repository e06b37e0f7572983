// The conversation: what is sent, and how an answer is shown while it comes.

import { code, indented, make, show } from "./texts.js";

const $ = (id) => document.getElementById(id);
const fields = $("fields"), log = $("log"), prompt = $("prompt"), send = $("send");
let messages = [];
let unanswered = []; // calls of tools whose results are awaited
let stopper = null;

// --- what is asked

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

function check() {
  if (fields.checkValidity()) return;
  look("settings");
  fields.reportValidity(); // goes to the field and says there what is wrong
  const field = fields.querySelector(":invalid");
  throw new Error(`${field.labels[0].firstChild.textContent.trim()}: ${field.validationMessage}`);
}

function body() {
  const system = fields.elements.system.value;
  const schema = json("schema"), tools = json("tools");
  check();
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

// --- what is shown

function bubble(role, name) {
  const article = make("article", role);
  article.setAttribute("aria-label", name);
  $("empty").hidden = true;
  log.append(article);
  return article;
}

class Answer {
  constructor() {
    this.conversation = messages; // which "New" may leave behind
    this.message = { role: "assistant", content: "" };
    this.reasoning = "";
    this.calls = [];
    this.started = performance.now();
    this.article = bubble("assistant", "Answer");
    this.article.setAttribute("aria-busy", "true");
    this.thought = make("details", "thought");
    this.thought.hidden = true;
    this.thoughtName = make("summary", "", "Thinking");
    this.thoughtText = make("div", "text");
    this.thought.append(this.thoughtName, this.thoughtText);
    this.text = make("div", "text");
    this.tools = make("div");
    this.foot = make("footer", "", "…");
    this.article.append(this.thought, this.text, this.tools, this.foot);
  }

  take(event) {
    if (event.error) throw new Error(event.error.message ?? "the answer broke off");
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
    this.reason = choice.finish_reason ?? this.reason;
    if (content || tool_calls) this.answering = true;
    if (content || reasoning || reasoning_content || tool_calls) this.first ??= performance.now();
    this.drawing ||= requestAnimationFrame(() => this.draw());
  }

  draw(ended = false) {
    this.drawing = 0;
    const below = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    this.thought.hidden = !this.reasoning.trim();
    this.thoughtName.textContent = this.answering || ended ? "Thoughts" : "Thinking…";
    this.thoughtText.textContent = this.reasoning.trim();
    show(this.text, this.message.content.trim(), ended);
    this.tools.replaceChildren(...this.calls.filter(Boolean).map((call) => {
      const card = make("section", "call");
      card.append(make("h3", "", call.function.name));
      card.append(code(indented(call.function.arguments) || call.function.arguments, "arguments"));
      return card;
    }));
    if (below) log.scrollTop = log.scrollHeight;
  }

  end(why) {
    cancelAnimationFrame(this.drawing);
    this.draw(true);
    const seconds = (performance.now() - this.first) / 1000, tokens = this.usage?.completion_tokens;
    this.foot.textContent = [
      tokens && `${tokens} tokens`,
      tokens > 1 && seconds > 0.005 && `${Math.round(tokens / seconds)}/s`,
      this.first && `first after ${Math.round(this.first - this.started)} ms`,
      this.usage?.prompt_tokens && `prompt ${this.usage.prompt_tokens}`,
      why ?? { length: "cut at most tokens" }[this.reason],
    ].filter(Boolean).join(" · ");
    this.article.removeAttribute("aria-busy");
    if (this.calls.length) this.message.tool_calls = this.calls.filter(Boolean);
    if (!this.message.content && !this.calls.length) return;
    this.conversation.push(this.message);
    if (this.conversation === messages) unanswered = why ? [] : [...(this.message.tool_calls ?? [])];
  }
}

function fail(text) {
  const note = bubble("failed", "Error");
  note.setAttribute("role", "alert");
  note.textContent = text;
  log.scrollTop = log.scrollHeight;
}

// --- how it goes

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").find((line) => line.startsWith("data:"))?.slice(5).trim();
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  }
}

async function answer() {
  const asked = body();
  stopper = new AbortController();
  busy(true);
  const shown = new Answer();
  log.scrollTop = log.scrollHeight;
  try {
    const sent = { method: "POST", headers: { ...headers(), "Content-Type": "application/json" } };
    const response = await fetch("v1/chat/completions", { ...sent, body: asked, signal: stopper.signal });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const event of events(response)) shown.take(event);
    shown.end();
  } catch (error) {
    const stopped = error.name === "AbortError";
    shown.end(stopped ? "stopped" : "broken off");
    if (!shown.first) shown.article.remove();
    if (!stopped) fail(error.message);
  } finally {
    stopper = null;
    busy(false);
  }
}

async function refusal(response) {
  if (response.status === 401) {
    look("settings");
    fields.elements.key.focus();
    return "This server wants an API key: give it under Settings.";
  }
  const told = await response.json().catch(() => ({}));
  return told.error?.message ?? `The server answered ${response.status}.`;
}

async function submit() {
  const text = prompt.value.trim();
  if (!text || stopper) return;
  const call = unanswered.shift();
  const role = call ? "tool" : "user";
  const asked = bubble(role, call ? `Result of ${call.function.name}` : "You");
  asked.append(make("div", "text", text));
  messages.push(call ? { role, tool_call_id: call.id, content: text } : { role, content: text });
  prompt.value = "";
  fit();
  if (!unanswered.length) {
    const conversation = messages, before = messages.length;
    try {
      await answer();
    } catch (error) { // nothing was sent
      fail(error.message);
    }
    if (conversation === messages && messages.length === before && !call) { // there is no answer: the question may be put again
      messages.pop();
      asked.remove();
      prompt.value ||= text;
      fit();
    }
  }
  expect();
}

function busy(on) {
  send.textContent = on ? "Stop" : "Send";
  send.classList.toggle("stop", on);
  $("told").textContent = on ? "The model answers." : "The answer has ended.";
}

function expect() {
  const call = unanswered[0];
  prompt.placeholder = call ? `Result of ${call.function.name}` : "Message";
}

function fit() {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
}

function look(view) {
  document.body.dataset.view = view;
  for (const button of document.querySelectorAll("nav button"))
    button.setAttribute("aria-pressed", String(button.dataset.view === view));
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  if (stopper) stopper.abort();
  else submit();
});
prompt.addEventListener("input", fit);
prompt.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => event.key === "Escape" && stopper?.abort());
fields.addEventListener("submit", (event) => event.preventDefault());
$("clear").addEventListener("click", () => {
  stopper?.abort();
  messages = [];
  unanswered = [];
  log.replaceChildren($("empty"));
  $("empty").hidden = false;
  expect();
  prompt.focus();
});
for (const button of document.querySelectorAll("#ideas button"))
  button.addEventListener("click", () => {
    prompt.value = button.textContent;
    submit();
  });
for (const button of document.querySelectorAll("nav button"))
  button.addEventListener("click", () => look(button.dataset.view));
