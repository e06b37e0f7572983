// Markdown as nodes, while it grows: complete blocks are drawn once, the last two again.

import { codeBlock, indentJson } from "./code.js";
import { make } from "./dom.js";
import { addMath, drawMath } from "./math.js";
import { mergeNodes } from "./merge.js";
import { sanitize } from "./sanitize.js";
import MarkdownIt from "./vendor/markdown-it/markdown-it.min.js";

const OPEN_BLOCKS = 2; // a line more may still join the last block to the one before it
const GROUP_BLOCKS = 12; // the browser skips style and layout of a group that is out of sight
const markdown = new MarkdownIt({ html: false, linkify: true });
markdown.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
addMath(markdown);

const { escapeHtml } = markdown.utils;
// Code becomes a block with a copy button in `finishNodes`.
markdown.renderer.rules.fence = (tokens, index) => {
  const language = tokens[index].info.trim().split(/\s+/)[0] ?? "";
  const content = escapeHtml(tokens[index].content.replace(/\n$/, ""));
  return `<pre data-language="${escapeHtml(language)}"><code>${content}</code></pre>`;
};
// No pictures from elsewhere: loading one would tell its server of the conversation.
markdown.renderer.rules.image = (tokens, index) => {
  const url = tokens[index].attrGet("src") ?? "";
  return `<a href="${escapeHtml(url)}">${escapeHtml(tokens[index].content || url)}</a>`;
};
for (const name of ["th_open", "td_open"])
  // alignment as a class: the page has no inline styles
  markdown.renderer.rules[name] = (tokens, index) => {
    const side = /text-align:(\w+)/.exec(tokens[index].attrGet("style") ?? "")?.[1];
    return `<${tokens[index].tag}${side ? ` class="align-${side}"` : ""}>`;
  };

/** A text that grows in an element. */
export class GrowingText {
  constructor(target) {
    this.target = target;
    this.env = {};
    this.length = 0; // characters in complete blocks
    this.open = []; // nodes of the last blocks
    this.group = null; // parent of the last blocks
    this.inGroup = GROUP_BLOCKS; // complete blocks in it
  }

  /** Draws the text, which starts with the text before. */
  update(text, ended = false) {
    const json = ended && indentJson(text);
    if (json) {
      this.target.replaceChildren(codeBlock(json, "json"));
      return;
    }
    const rest = text.slice(this.length);
    const tokens = markdown.parse(rest, this.env);
    const starts = tokens.flatMap((token, index) =>
      token.level === 0 && token.nesting >= 0 && token.map ? [index] : [],
    );
    const split = ended ? tokens.length : (starts.at(-OPEN_BLOCKS) ?? 0);
    if (split > 0) {
      for (const node of this.open) node.remove();
      for (const node of this.#nodes(tokens.slice(0, split), true)) {
        if (node.nodeType !== Node.ELEMENT_NODE) continue; // line breaks between blocks
        this.#openGroup().append(node);
        this.inGroup += 1;
      }
      if (!ended) this.length += offsetOfLine(rest, tokens[split].map[0]);
      this.open = [];
    }
    const nodes = this.#nodes(tokens.slice(split), false);
    if (nodes.length) this.open = mergeNodes(this.#openGroup(), this.open, nodes);
  }

  /** Returns the group of the next block. */
  #openGroup() {
    if (this.inGroup >= GROUP_BLOCKS) {
      this.group = make("div", "blocks");
      this.target.append(this.group);
      this.inGroup = 0;
    }
    return this.group;
  }

  #nodes(tokens, complete) {
    const fragment = sanitize(markdown.renderer.render(tokens, markdown.options, this.env));
    return finishNodes([...fragment.childNodes], complete);
  }
}

function offsetOfLine(text, line) {
  let offset = 0;
  for (let each = 0; each < line; each += 1) offset = text.indexOf("\n", offset) + 1;
  return offset;
}

/** Returns the nodes with code blocks, links that open elsewhere, tables that scroll, and math. */
function finishNodes(nodes, complete) {
  const holder = make("div");
  holder.append(...nodes);
  for (const link of holder.querySelectorAll("a")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const table of holder.querySelectorAll("table")) {
    const scroller = make("div", "scroller");
    scroller.tabIndex = 0;
    scroller.setAttribute("role", "group");
    scroller.setAttribute("aria-label", "Table");
    table.replaceWith(scroller);
    scroller.append(table);
  }
  for (const pre of holder.querySelectorAll("pre"))
    pre.replaceWith(codeBlock(pre.textContent, pre.dataset.language ?? "", complete));
  drawMath([holder]);
  return [...holder.childNodes];
}
