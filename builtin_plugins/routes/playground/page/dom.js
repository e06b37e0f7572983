// Elements and formatted numbers.

export const $ = (id) => document.getElementById(id);

/** Returns an element; its text is inserted as text, never as HTML. */
export function make(name, className = "", text = "") {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

/** Returns a button with a visible text, and a longer name for screen readers. */
export function makeButton(text, onClick, { name = "", className = "" } = {}) {
  const button = make("button", className, text);
  button.type = "button";
  if (name) {
    button.title = name;
    button.setAttribute("aria-label", name);
  }
  button.addEventListener("click", onClick);
  return button;
}

/** Announces a text to screen readers. */
export function announce(text) {
  $("announcement").textContent = text;
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** Returns a whole number; from a million on in short form, so that it fits its card. */
export const formatWhole = (number) =>
  number < 1e6 ? Math.round(number).toLocaleString("en") : compact.format(number);

export const formatNumber = (number) =>
  number < 100 ? String(Number(number.toPrecision(3))) : formatWhole(number);

/** Returns a duration given in seconds. */
export function formatSeconds(seconds) {
  if (seconds < 0.0995) return `${formatNumber(seconds * 1000)} ms`;
  return seconds < 10 ? `${seconds.toFixed(2)} s` : `${seconds.toFixed(1)} s`;
}

/** Lets the browser draw before what follows. */
export const nextTask = () => new Promise((go) => setTimeout(go));
