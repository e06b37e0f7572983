// Code blocks: a header with the language and a copy button; colours once a block is complete.

import { announce, make, makeButton, nextTask } from "./dom.js";
import { sanitize } from "./sanitize.js";

const MAX_COLOURED = 30_000; // characters; longer code stays plain, so that no frame is long
let highlighter = null;

export async function copyText(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // not allowed, or no secure context
    const field = make("textarea", "visually-hidden");
    field.value = text;
    document.body.append(field);
    field.select();
    button.textContent = document.execCommand("copy") ? "Copied" : "Not copied";
    field.remove();
    button.focus();
  }
  announce(button.textContent);
  setTimeout(() => (button.textContent = before), 1500);
}

/** Returns a block of code; it has colours unless it still grows. */
export function codeBlock(text, language = "", complete = true) {
  const block = make("div", "code-block");
  const head = make("div", "code-head");
  head.append(make("span", "", language || "text"));
  const copy = ({ target }) => copyText(pre.textContent, target); // the text may have grown
  head.append(makeButton("Copy", copy, { name: "Copy this code" }));
  const pre = make("pre");
  pre.tabIndex = 0; // for scrolling by keyboard
  pre.setAttribute("role", "group");
  pre.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
  const code = make("code", "", text);
  pre.append(code);
  block.append(head, pre);
  if (complete && language && text.length <= MAX_COLOURED) colour(code, text, language);
  return block;
}

/** Loads the library; it is not needed for the first paint. */
export const loadHighlighter = () =>
  (highlighter ??= import("./vendor/highlight/highlight.min.js"));

async function colour(code, text, language) {
  const { default: hljs } = await loadHighlighter();
  await nextTask(); // the first text in a language takes longest
  if (!hljs.getLanguage(language)) return;
  code.replaceChildren(sanitize(hljs.highlight(text, { language, ignoreIllegals: true }).value));
}

/** Returns a JSON object or list with line breaks, its numbers, strings and keys as they are. */
export function indentJson(text) {
  if (!/^\s*[[{]/.test(text)) return "";
  try {
    JSON.parse(text);
  } catch {
    return "";
  }
  const parts = text.match(/"(?:[^"\\]|\\.)*"|[^\s"{}[\],:]+|[{}[\],:]/g);
  let depth = 0;
  return parts
    .map((part, index) => {
      const isEmpty = "{[".includes(parts[index - 1] ?? " ");
      if ("{[".includes(part)) depth += 1;
      if ("}]".includes(part)) depth -= 1;
      const line = `\n${"  ".repeat(depth)}`;
      if ("}]".includes(part)) return isEmpty ? part : line + part;
      if ("{[".includes(part)) return "}]".includes(parts[index + 1]) ? part : part + line;
      return { ",": `,${line}`, ":": ": " }[part] ?? part;
    })
    .join("");
}
