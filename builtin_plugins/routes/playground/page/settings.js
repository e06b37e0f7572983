// The settings form: request fields, presets, theme and API key.

import { setKey } from "./api.js";
import { $, announce, make } from "./dom.js";
import { get, put } from "./store.js";

const fields = $("fields");
const NUMBERS = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "max_tokens",
  "seed",
  "presence_penalty",
  "frequency_penalty",
  "repetition_penalty",
];
const TEXTS = ["system", "schema", "tools", "stop", "extra"];
const STORED = [...NUMBERS, ...TEXTS, "reasoning_effort"];
let presets = {};

export const field = (name) => fields.elements[name];

/** Returns the values of the form by name; the key is not among them. */
export function values() {
  const filled = STORED.filter((name) => field(name).value.trim() !== "");
  return Object.fromEntries([
    ...filled.map((name) => [name, field(name).value]),
    ["trace", field("trace").checked],
  ]);
}

export function setValues(next) {
  for (const name of STORED) field(name).value = typeof next[name] === "string" ? next[name] : "";
  field("trace").checked = next.trace !== false;
}

/** Displays the server's defaults in empty fields. */
export function setDefaults(defaults) {
  for (const [name, value] of Object.entries(defaults))
    field(name).placeholder = value ?? "default";
}

// --- The request

function number(name) {
  const { value } = field(name);
  return value === "" ? undefined : Number(value);
}

function json(name) {
  const element = field(name);
  element.setCustomValidity("");
  if (!element.value.trim()) return undefined;
  try {
    return JSON.parse(element.value);
  } catch (error) {
    element.setCustomValidity(`This is not JSON: ${error.message}`);
    return undefined;
  }
}

/** Returns the request fields of the form; throws an error that names a wrong field. */
export function requestFields() {
  const schema = json("schema");
  const tools = json("tools");
  const extra = json("extra");
  const wrong = fields.querySelector("input:invalid, textarea:invalid");
  if (wrong) {
    const error = new Error(`${labelOf(wrong)}: ${wrong.validationMessage}`);
    error.field = wrong.name;
    throw error;
  }
  const stop = field("stop").value.split("\n").filter(Boolean);
  return {
    ...Object.fromEntries(NUMBERS.map((name) => [name, number(name)])),
    reasoning_effort: field("reasoning_effort").value || undefined,
    stop: stop.length ? stop : undefined,
    tools,
    response_format: schema && { type: "json_schema", json_schema: { name: "answer", schema } },
    ...(field("trace").checked ? { logprobs: true, top_logprobs: 5 } : {}),
    ...extra,
  };
}

const labelOf = (element) => element.labels[0].firstChild.textContent.trim();

/** Returns whether the form has a field of this name. */
export const hasField = (name) => field(name) instanceof HTMLElement;

export function focusField(name) {
  field(name).closest("details")?.setAttribute("open", "");
  field(name).focus();
}

// --- Presets

function renderPresets(selected = "") {
  const names = Object.keys(presets).sort((a, b) => a.localeCompare(b));
  const options = ["", ...names].map((name) => {
    const option = make("option", "", name || "None");
    option.value = name;
    return option;
  });
  $("preset").replaceChildren(...options);
  $("preset").value = selected;
  $("delete-preset").disabled = !selected;
}

async function savePreset() {
  const name = $("preset-name").value.trim();
  if (!name) {
    $("preset-name").focus();
    announce("Enter a name for the preset.");
    return;
  }
  presets[name] = values();
  $("preset-name").value = "";
  renderPresets(name);
  await put("values", "presets", presets);
  announce(`The preset ${name} is stored.`);
}

async function deletePreset() {
  delete presets[$("preset").value];
  renderPresets();
  await put("values", "presets", presets);
}

function applyTheme() {
  const theme = field("theme").value;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

/** Loads what the browser stores, and stores each change. */
export async function connectSettings() {
  setValues((await get("values", "settings")) ?? {});
  presets = (await get("values", "presets")) ?? {};
  field("theme").value = (await get("values", "theme")) ?? "";
  renderPresets();
  applyTheme();
  setKey(field("key").value);
  fields.addEventListener("submit", (event) => event.preventDefault());
  fields.addEventListener("input", ({ target }) => {
    if (target.name === "key") setKey(target.value);
    else if (STORED.includes(target.name) || target.name === "trace")
      put("values", "settings", values());
  });
  field("theme").addEventListener("change", () => {
    applyTheme();
    put("values", "theme", field("theme").value);
  });
  $("preset").addEventListener("change", () => {
    const name = $("preset").value;
    $("delete-preset").disabled = !name;
    if (!name) return;
    setValues(presets[name]);
    put("values", "settings", values());
    announce(`The preset ${name} is in use.`);
  });
  $("save-preset").addEventListener("click", savePreset);
  $("delete-preset").addEventListener("click", deletePreset);
  $("preset-name").addEventListener("keydown", (event) => event.key === "Enter" && savePreset());
}
