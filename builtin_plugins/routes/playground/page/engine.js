// The engine view: polls the engine's state once a second while the page is visible.

import { headers } from "./api.js";
import { enableImages } from "./attachments.js";
import { $, formatNumber, formatWhole, make } from "./dom.js";
import { setDefaults } from "./settings.js";

const HISTORY = 60,
  POLL_MS = 1000;
const speeds = Array(HISTORY).fill(0);
let previous = null;
let rejectedKey = null; // not sent again
let renderedPlugins = "";

function setText(id, text) {
  const element = $(id);
  if (element.textContent !== text) element.textContent = text;
}

function setStatus(state, text) {
  $("status").dataset.state = state;
  $("engine").classList.toggle("stale", state === "dead"); // its numbers are old
  setText("status", text);
}

async function poll() {
  const key = headers().Authorization ?? "";
  if (key === rejectedKey) return false;
  try {
    const response = await fetch("playground/state", {
      headers: headers(),
      signal: AbortSignal.timeout(5000),
    });
    rejectedKey = response.status === 401 ? key : null;
    if (rejectedKey !== null) setStatus("locked", key ? "key refused" : "key required");
    else if (!response.ok) setStatus("dead", `answers ${response.status}`);
    else {
      render(await response.json());
      return true;
    }
  } catch {
    setStatus("dead", "unreachable");
    setText("facts", "The server does not answer: these numbers are its last ones.");
  }
  return false;
}

function render(state) {
  const { health, requests, blocks, totals } = state;
  setStatus(health.status, health.status);
  enableImages(state.takes_images);
  setText("running", formatWhole(requests.running));
  setText("waiting", formatWhole(requests.waiting));
  setDefaults(state.defaults);
  if (blocks) renderBlocks(blocks);
  if (totals) renderTotals(totals, state.time_s);
  renderEngines(state.engines);
  renderPlugins(state.plugins);
  const restarts = health.restarts ? `, ${health.restarts} restarts` : "";
  setText(
    "facts",
    health.reason ||
      `Version ${state.version}, context ${formatWhole(state.max_model_len)} tokens${restarts}`,
  );
}

function renderBlocks({ used, cached, free }) {
  const all = used + cached + free || 1;
  for (const [name, value] of Object.entries({ used, cached, free }))
    setText(name, formatWhole(value));
  for (const part of $("bar").children) {
    const share = { used, cached }[part.className] / all;
    part.style.width = share ? `max(3px, ${100 * share}%)` : "0"; // a small share stays visible
  }
  $("bar").setAttribute("aria-label", `${used} used, ${cached} cached, ${free} free`);
}

function renderTotals(totals, now) {
  setText("ended", formatWhole(totals.ended_requests));
  if (previous && previous.totals.steps <= totals.steps && now > previous.now) {
    const increase = (name) => totals[name] - previous.totals[name];
    const speed = increase("generated_tokens") / (now - previous.now),
      steps = increase("steps");
    speeds.push(speed);
    speeds.shift();
    setText("speed", formatNumber(speed));
    if (steps) {
      // otherwise the last values stay
      setText("step", `${formatNumber((1000 * increase("step_s")) / steps)} ms`);
      setText("positions", formatNumber(increase("computed_tokens") / steps));
    }
    renderSpark();
  }
  previous = { totals, now };
}

function renderSpark() {
  const top = Math.max(...speeds, 1),
    dx = 240 / (HISTORY - 1);
  const points = speeds.map(
    (speed, i) => `${(i * dx).toFixed(1)} ${(45 - (42 * speed) / top).toFixed(1)}`,
  );
  const line = `M${points.join("L")}`;
  $("spark").querySelector(".line").setAttribute("d", line);
  $("spark").querySelector(".area").setAttribute("d", `${line}L240 48L0 48Z`);
}

function renderEngines(engines) {
  $("engines").hidden = !engines.length; // one engine has the cards above
  const ready = engines.filter((engine) => engine.status === "ready").length;
  setText("engine-status", `${ready} of ${engines.length} ready`);
  $("engines").classList.toggle("faulty", ready < engines.length);
  $("engine-list").replaceChildren(
    ...engines.map((engine) => {
      const item = make("li", engine.status === "ready" ? "" : "faulty");
      const facts = [
        engine.status,
        `${formatWhole(engine.running ?? 0)} running`,
        `${formatWhole(engine.waiting ?? 0)} waiting`,
      ];
      if (engine.blocks) {
        const { used, cached, free } = engine.blocks;
        facts.push(
          `${formatWhole(used)} of ${formatWhole(used + cached + free)} blocks used, ` +
            `${formatWhole(cached)} cached`,
        );
      }
      if (engine.restarts) facts.push(`${engine.restarts} restarts`);
      item.append(make("span", "", `Engine ${engine.rank}`), make("small", "", facts.join(", ")));
      if (engine.reason) item.append(make("em", "", engine.reason));
      return item;
    }),
  );
}

function renderPlugins(plugins) {
  const serialized = JSON.stringify(plugins);
  if (serialized === renderedPlugins) return;
  renderedPlugins = serialized;
  const rank = (plugin) => (plugin.faults ? 0 : plugin.builtin ? 2 : 1);
  const sorted = [...plugins].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
  const faulty = plugins.filter((plugin) => plugin.faults).length;
  setText("plugin-status", `${plugins.length}, ${faulty ? `${faulty} with faults` : "no faults"}`);
  $("plugins").classList.toggle("faulty", faulty > 0);
  $("list").replaceChildren(
    ...sorted.map((plugin) => {
      const item = make("li", plugin.faults ? "faulty" : "");
      item.append(
        make("span", "", plugin.name),
        make("small", "", plugin.builtin ? "builtin" : plugin.origin),
      );
      if (plugin.faults) {
        const state = plugin.stopped ? "stopped" : "faults";
        item.append(make("em", "", `${state} (${plugin.faults}): ${plugin.error}`));
      }
      return item;
    }),
  );
}

/** Polls the engine; `onAnswer` is called when the server has sent its state. */
export async function watchEngine(onAnswer) {
  if (!document.hidden && (await poll())) onAnswer();
  setTimeout(() => watchEngine(onAnswer), POLL_MS);
}
