// The live view: asks for the engine's state once a second while somebody looks, and shows what has changed.

import { headers } from "./chat.js";
import { brief, make, whole } from "./texts.js";

const $ = (id) => document.getElementById(id);
const MOST = 60, EVERY_MS = 1000;
const speeds = Array(MOST).fill(0);
let before = null;
let refused = null; // a key is tried once
let pluginsShown = "";

function tell(id, text) {
  const element = $(id);
  if (element.textContent !== text) element.textContent = text;
}

function status(state, text) {
  $("status").dataset.state = state;
  tell("status", text);
}

async function look() {
  const key = headers().Authorization ?? "";
  if (key === refused) return;
  try {
    const response = await fetch("playground/state", { headers: headers(), signal: AbortSignal.timeout(5000) });
    refused = response.status === 401 ? key : null;
    if (refused !== null) status("locked", "key wanted");
    else if (!response.ok) status("dead", `answers ${response.status}`);
    else draw(await response.json());
  } catch {
    status("dead", "not reached");
  }
}

function draw(state) {
  const { health, requests, blocks, totals } = state;
  status(health.status, health.status);
  tell("model", state.model);
  tell("running", whole(requests.running));
  tell("waiting", whole(requests.waiting));
  for (const [name, value] of Object.entries(state.defaults))
    document.forms.fields.elements[name].placeholder = value ?? "default";
  if (blocks) drawBlocks(blocks);
  if (totals) drawTotals(totals, state.time_s);
  drawPlugins(state.plugins);
  const restarts = health.restarts ? `, ${health.restarts} restarts` : "";
  tell("facts", health.reason || `Version ${state.version}, context ${whole(state.max_model_len)} tokens${restarts}`);
}

function drawBlocks({ used, cached, free }) {
  const all = used + cached + free || 1;
  for (const [name, value] of Object.entries({ used, cached, free })) tell(name, whole(value));
  for (const part of $("bar").children) {
    const share = { used, cached }[part.className] / all;
    part.style.width = share ? `max(3px, ${100 * share}%)` : "0"; // a few of many are to be seen, too
  }
  $("bar").setAttribute("aria-label", `${used} used, ${cached} cached, ${free} free`);
}

function drawTotals(totals, now) {
  tell("ended", whole(totals.ended_requests));
  if (before && before.totals.steps <= totals.steps && now > before.now) {
    const more = (name) => totals[name] - before.totals[name];
    const speed = more("generated_tokens") / (now - before.now), steps = more("steps");
    speeds.push(speed);
    speeds.shift();
    tell("speed", brief(speed));
    if (steps) { // else the last ones stay
      tell("step", `${brief((1000 * more("step_s")) / steps)} ms`);
      tell("positions", brief(more("computed_tokens") / steps));
    }
    drawSpark();
  }
  before = { totals, now };
}

function drawSpark() {
  const top = Math.max(...speeds, 1), dx = 240 / (MOST - 1);
  const points = speeds.map((speed, i) => `${(i * dx).toFixed(1)} ${(45 - (42 * speed) / top).toFixed(1)}`);
  const line = `M${points.join("L")}`;
  $("spark").querySelector(".line").setAttribute("d", line);
  $("spark").querySelector(".area").setAttribute("d", `${line}L240 48L0 48Z`);
}

function drawPlugins(plugins) {
  const seen = JSON.stringify(plugins);
  if (seen === pluginsShown) return;
  pluginsShown = seen;
  const rank = (plugin) => (plugin.faults ? 0 : plugin.builtin ? 2 : 1);
  const sorted = [...plugins].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
  const ill = plugins.filter((plugin) => plugin.faults).length;
  tell("wellness", `${plugins.length}, ${ill ? `${ill} with faults` : "all well"}`);
  $("plugins").classList.toggle("ill", ill > 0);
  $("list").replaceChildren(...sorted.map((plugin) => {
    const item = make("li", plugin.faults ? "ill" : "");
    item.append(make("span", "", plugin.name), make("small", "", plugin.builtin ? "builtin" : plugin.origin));
    if (plugin.faults) {
      const what = plugin.stopped ? "stopped" : "faults";
      item.append(make("em", "", `${what} (${plugin.faults}): ${plugin.error}`));
    }
    return item;
  }));
}

async function run() {
  if (!document.hidden) await look();
  setTimeout(run, EVERY_MS);
}

run();
