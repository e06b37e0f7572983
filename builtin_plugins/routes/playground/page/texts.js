// Elements from texts. No text on this page is ever inserted as HTML.

export function make(name, className = "", text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

/** Renders a text: fenced blocks as code, JSON indented, everything else verbatim. */
export function renderText(target, text, ended = false) {
  const json = ended && indentJson(text);
  if (json) return target.replaceChildren(codeBlock(json, "json"));
  const parts = text.split(/^```/m);
  target.replaceChildren(...parts.map((part, index) => {
    if (index % 2 === 0) return make("span", "", index ? part.replace(/^\n/, "") : part);
    const [language, ...lines] = part.split("\n");
    return codeBlock(lines.join("\n").replace(/\n$/, ""), language.trim());
  }).filter((part) => part.textContent));
}

export function codeBlock(text, language) {
  const block = make("pre");
  block.tabIndex = 0; // for scrolling by keyboard
  if (language) block.dataset.language = language;
  block.append(make("code", "", text));
  return block;
}

/** Returns a JSON object or list indented, and an empty string for any other text. */
export function indentJson(text) {
  if (!/^\s*[[{]/.test(text)) return "";
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return "";
  }
}

export const formatWhole = (number) => Math.round(number).toLocaleString("en");
export const formatNumber = (number) => number < 100 ? String(Number(number.toPrecision(3))) : formatWhole(number);
