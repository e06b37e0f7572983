// Math: $...$, $$...$$, \(...\) and \[...\] in Markdown, drawn by KaTeX.

import { nextTask } from "./dom.js";

let katex = null;
const drawn = new Map(); // while an answer grows, its last block is drawn again and again
const MAX_DRAWN = 500;

/** Adds the rules for math to a Markdown parser; they leave `<span data-math>`. */
export function addMath(markdown) {
  markdown.inline.ruler.before("escape", "math", inlineMath);
  markdown.block.ruler.before("fence", "math_block", blockMath, {
    alt: ["paragraph", "reference", "blockquote", "list"],
  });
  const escape = markdown.utils.escapeHtml;
  const rendered = (token) =>
    `<span data-math="${escape(token.content)}"${token.meta ? ' data-display="1"' : ""}></span>`;
  markdown.renderer.rules.math = (tokens, index) => rendered(tokens[index]);
  markdown.renderer.rules.math_block = (tokens, index) => `<p>${rendered(tokens[index])}</p>`;
}

const DELIMITERS = [
  ["$$", "$$", true],
  ["\\[", "\\]", true],
  ["\\(", "\\)", false],
  ["$", "$", false],
];

function inlineMath(state, silent) {
  const { src, pos } = state;
  for (const [open, close, display] of DELIMITERS) {
    if (!src.startsWith(open, pos)) continue;
    const start = pos + open.length;
    const end = src.indexOf(close, start);
    if (end <= start) return false;
    const content = src.slice(start, end);
    // A price is no math: "$5 and $6".
    if (open === "$" && (/^\s|\s$|\n\n/.test(content) || /\d/.test(src[end + 1] ?? "")))
      return false;
    if (!silent) {
      const token = state.push("math", "math", 0);
      token.content = content.trim();
      token.meta = display;
    }
    state.pos = end + close.length;
    return true;
  }
  return false;
}

function blockMath(state, first, end, silent) {
  const lineOf = (line) =>
    state.src.slice(state.bMarks[line] + state.tShift[line], state.eMarks[line]);
  const opened = lineOf(first).trim();
  const [open, close] =
    DELIMITERS.slice(0, 2).find(([delimiter]) => opened.startsWith(delimiter)) ?? [];
  if (!open) return false;
  const lines = [];
  for (let line = first; line < end; line += 1) {
    const text = line === first ? opened.slice(open.length) : lineOf(line).trim();
    if (!text.endsWith(close)) {
      if (text.includes(close)) return false; // text follows: inline
      lines.push(text);
      continue;
    }
    if (silent) return true;
    lines.push(text.slice(0, -close.length));
    const token = state.push("math_block", "math", 0);
    token.content = lines.join("\n").trim();
    token.meta = true;
    token.map = [first, line + 1];
    state.line = line + 1;
    return true;
  }
  return false;
}

/** Draws the math among the nodes. */
export async function drawMath(nodes) {
  const found = nodes.flatMap((node) =>
    node.querySelectorAll ? [...node.querySelectorAll("[data-math]")] : [],
  );
  if (!found.length) return;
  for (const span of found) if (!draw(span)) span.textContent = span.dataset.math;
  if (globalThis.katex) return;
  await loadMath();
  found.forEach(draw);
}

/** Loads KaTeX; it is not needed for the first paint. */
export const loadMath = () => (katex ??= load());

async function load() {
  const style = document.createElement("link");
  style.rel = "stylesheet";
  style.href = new URL("vendor/katex/katex.min.css", import.meta.url).href;
  document.head.append(style);
  await import("./vendor/katex/katex.min.js");
  await nextTask();
  drawFormula("\\frac{x}{2}", true); // the first one takes longest
}

function draw(span) {
  if (!globalThis.katex) return false;
  const display = span.dataset.display === "1";
  const key = `${display} ${span.dataset.math}`;
  if (!drawn.has(key)) {
    if (drawn.size >= MAX_DRAWN) drawn.clear();
    drawn.set(key, drawFormula(span.dataset.math, display));
  }
  span.replaceChildren(...drawn.get(key).cloneNode(true).childNodes);
  return true;
}

/** Returns an element with a formula; one that KaTeX cannot read stays as it was written. */
function drawFormula(text, display) {
  const target = document.createElement("span");
  try {
    // As nodes: the content security policy forbids styles within HTML.
    globalThis.katex.render(text, target, {
      displayMode: display,
      trust: false,
      maxSize: 20,
      maxExpand: 200,
    });
  } catch {
    target.textContent = text;
  }
  return target;
}
