// Elements from texts. Nothing here, or elsewhere in the page, puts a text in as HTML.

export function make(name, className = "", text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

/** Shows a text: what stands between fences as code, a text that is JSON indented, the rest as it is. */
export function show(target, text, ended = false) {
  const json = ended && indented(text);
  if (json) return target.replaceChildren(code(json, "json"));
  const parts = text.split(/^```/m);
  target.replaceChildren(...parts.map((part, index) => {
    if (index % 2 === 0) return make("span", "", index ? part.replace(/^\n/, "") : part);
    const [language, ...lines] = part.split("\n");
    return code(lines.join("\n").replace(/\n$/, ""), language.trim());
  }).filter((part) => part.textContent));
}

export function code(text, language) {
  const block = make("pre");
  block.tabIndex = 0; // so that the keyboard can scroll it
  if (language) block.dataset.language = language;
  block.append(make("code", "", text));
  return block;
}

/** Returns an object or list, given as JSON, in lines; nothing for any other text. */
export function indented(text) {
  if (!/^\s*[[{]/.test(text)) return "";
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return "";
  }
}

export const whole = (number) => Math.round(number).toLocaleString("en");
export const brief = (number) => number < 100 ? String(Number(number.toPrecision(3))) : whole(number);
