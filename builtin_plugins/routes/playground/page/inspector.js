// The engine under an answer: its times, prompt blocks, draft tokens, and the tokens themselves.

import { requestJson } from "./api.js";
import { formatNumber, formatSeconds, formatWhole, make, makeButton } from "./dom.js";
import { get, put } from "./store.js";
import { tokenList } from "./tokens.js";

const MAX_CELLS = 400; // a longer prompt has several blocks in a cell
const ATTEMPTS = 5;
const ATTEMPT_MS = 200;
const recordings = new Map(); // traces that are not stored yet, by message

/** Returns a folded panel, which is filled when it is opened. */
export function inspector(node) {
  const panel = make("details", "inspector");
  panel.append(make("summary", "", "Engine"));
  const body = make("div", "inspector-body");
  panel.append(body);
  panel.hidden = !node.answerId;
  panel.addEventListener("toggle", async () => {
    if (!panel.open || body.childNodes.length) return;
    body.textContent = "Loading…";
    await recordings.get(node.id);
    const trace = await get("traces", node.id);
    body.replaceChildren(
      ...(trace ? sections(trace) : [make("p", "hint", "Nothing is recorded of this answer.")]),
    );
  });
  return panel;
}

/** Stores what the engine knows of an answer, with the tokens that the page has recorded. */
export function recordTrace(node, trace) {
  recordings.set(
    node.id,
    record(node, trace).finally(() => recordings.delete(node.id)),
  );
}

async function record(node, trace) {
  for (let attempt = 0; attempt < ATTEMPTS && !trace.engine; attempt += 1) {
    try {
      trace.engine = await requestJson(
        `playground/request?id=${encodeURIComponent(node.answerId)}`,
      );
    } catch {
      // the engine counts a request after its last event
      await new Promise((resolve) => setTimeout(resolve, ATTEMPT_MS));
    }
  }
  if (trace.engine?.explains) trace.lines = await explanation(node.answerId);
  await put("traces", node.id, trace);
}

async function explanation(id) {
  try {
    return (await requestJson(`explain?request_id=${encodeURIComponent(id)}`)).lines;
  } catch {
    return [];
  }
}

function sections(trace) {
  const { engine, tokens, lines } = trace;
  const found = [];
  if (engine) found.push(timeSection(engine), blockSection(engine, trace));
  if (engine?.drafted) found.push(draftSection(engine));
  if (engine?.cost) found.push(costSection(engine.cost));
  if (tokens.length) found.push(stepSection(tokens), tokenSection(tokens));
  else
    found.push(
      make("p", "hint", "Tokens are recorded if “Token probabilities” is on under Settings."),
    );
  if (lines?.length) found.push(lineSection(lines));
  return found;
}

function section(title, ...content) {
  const element = make("div", "section");
  element.setAttribute("role", "group"); // no landmark: each answer has these
  element.setAttribute("aria-label", title);
  element.append(make("p", "title", title), ...content);
  return element;
}

function facts(pairs) {
  const list = make("dl", "facts");
  for (const [term, value] of pairs) {
    const pair = make("div");
    pair.append(make("dt", "", term), make("dd", "", value));
    list.append(pair);
  }
  return list;
}

function timeSection({ queue_s, prefill_s, decode_s, generated_tokens }) {
  const parts = [
    ["Queue", queue_s, "queue"],
    ["Prefill", prefill_s, "prefill"],
    ["Decode", decode_s, "decode"],
  ].filter(([, seconds]) => seconds !== null);
  const bar = make("div", "bar times");
  bar.setAttribute("role", "img");
  bar.setAttribute(
    "aria-label",
    parts.map(([name, seconds]) => `${name} ${formatSeconds(seconds)}`).join(", "),
  );
  for (const [, seconds, kind] of parts) {
    const part = make("i", kind);
    part.style.flexGrow = String(1000 * seconds); // a sum below 1 would leave a gap
    bar.append(part);
  }
  const pairs = parts.map(([name, seconds]) => [name, formatSeconds(seconds)]);
  if (decode_s && generated_tokens > 1)
    pairs.push(["Per token", formatSeconds(decode_s / (generated_tokens - 1))]);
  return section("Time", bar, facts(pairs));
}

function blockSection({ prompt_tokens, cached_tokens, block_size }, trace) {
  const pairs = [
    ["Prompt", `${formatWhole(prompt_tokens)} tokens`],
    ["From cache", `${formatWhole(cached_tokens)} tokens`],
  ];
  if (!block_size) return section("Prompt", facts(pairs));
  const count = Math.ceil(prompt_tokens / block_size);
  const perCell = Math.ceil(count / MAX_CELLS);
  const text = make("p", "block-text");
  text.setAttribute("role", "status");
  const cells = make("div", "cells");
  const size = perCell * block_size;
  for (let start = 0; start < prompt_tokens; start += size) {
    const end = Math.min(start + size, prompt_tokens);
    const cached = start + Math.min(size, block_size) <= cached_tokens;
    const name = `Tokens ${start + 1} to ${end}, ${cached ? "from cache" : "computed"}`;
    cells.append(
      makeButton("", () => showBlock(text, name, start, end, trace), {
        name,
        className: cached ? "cell cached" : "cell",
      }),
    );
  }
  pairs.push(["Blocks", `${formatWhole(count)} of ${block_size} tokens`]);
  const legend = make("p", "hint");
  legend.append(
    make("span", "key cached", "from cache"),
    " ",
    make("span", "key computed", "computed"),
    " · press a block for its text",
  );
  return section("Prompt blocks", facts(pairs), cells, legend, text);
}

/** Displays the text of a range of prompt tokens. */
async function showBlock(target, name, start, end, { messages, tools, model, engine }) {
  const unknown =
    `${name}. Its text is not known: ` + "the prompt has pictures, or the model has changed.";
  target.textContent = messages ? `${name}: loading…` : unknown;
  if (!messages) return;
  try {
    const body = {
      model: model || undefined,
      messages,
      tools,
      add_generation_prompt: true,
      return_token_strs: true,
    };
    const found = await requestJson("tokenize", { body });
    const isSame = found.count === engine.prompt_tokens;
    target.textContent = isSame
      ? `${name}: ${found.token_strs.slice(start, end).join("")}`
      : unknown;
  } catch (error) {
    target.textContent = `${name}. ${error.message}`;
  }
}

function draftSection({ drafted, accepted }) {
  const rate = `${Math.round((100 * accepted) / drafted)} %`;
  return section(
    "Draft tokens",
    facts([
      ["Drafted", formatWhole(drafted)],
      ["Accepted", formatWhole(accepted)],
      ["Acceptance rate", rate],
    ]),
  );
}

const costSection = ({ cpu_seconds, kv_byte_seconds, computed_tokens }) =>
  section(
    "Cost",
    facts([
      ["Processors", formatSeconds(cpu_seconds)],
      ["Computed positions", formatWhole(computed_tokens)],
      ["KV cache", `${formatNumber(kv_byte_seconds / 1e6)} MB·s`],
    ]),
  );

/** Displays the time between the steps that brought tokens, as the page received them. */
function stepSection(tokens) {
  const times = [...new Set(tokens.map(([, , time]) => time))];
  const gaps = times.slice(1).map((time, index) => time - times[index]);
  if (gaps.length < 2)
    return section("Steps", facts([["Steps with tokens", formatWhole(times.length)]]));
  const sorted = [...gaps].sort((a, b) => a - b);
  const slowest = sorted.at(-1);
  const chart = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  chart.setAttribute("viewBox", "0 0 240 40");
  chart.setAttribute("preserveAspectRatio", "none");
  chart.setAttribute("aria-hidden", "true");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  const dx = 240 / Math.max(gaps.length - 1, 1);
  const height = (gap) => (38 - (36 * gap) / slowest).toFixed(1);
  path.setAttribute(
    "d",
    `M${gaps.map((gap, index) => `${(index * dx).toFixed(1)} ${height(gap)}`).join("L")}`,
  );
  path.setAttribute("class", "line");
  chart.append(path);
  chart.setAttribute("class", "steps");
  return section(
    "Steps",
    chart,
    facts([
      ["Steps with tokens", formatWhole(times.length)],
      ["Median", formatSeconds(sorted[sorted.length >> 1] / 1000)],
      ["Slowest", formatSeconds(slowest / 1000)],
      ["Tokens per step", formatNumber(tokens.length / times.length)],
    ]),
  );
}

const tokenSection = (tokens) => section("Tokens", ...tokenList(tokens));

function lineSection(lines) {
  const list = make("ul", "lines");
  list.append(...lines.map((line) => make("li", "", line)));
  return section("engine explain", list);
}
