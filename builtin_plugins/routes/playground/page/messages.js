// How messages are displayed: text, reasoning, tool calls, and the buttons of each message.

import { preview } from "./attachments.js";
import { codeBlock, copyText, indentJson } from "./code.js";
import { make, makeButton } from "./dom.js";
import { inspector } from "./inspector.js";
import { GrowingText } from "./markdown.js";

const NAMES = { user: "You", assistant: "Answer", tool: "Result of" };
const AT_END = 80; // pixels
const DRAW_SHARE = 4; // a drawing of 10 ms is followed by 40 ms without one

/** Returns whether the log is scrolled to its end, and follows what is added. */
export const atEnd = (log) => log.scrollHeight - log.scrollTop - log.clientHeight < AT_END;

/** Returns an article with a message. */
function article(node) {
  const element = make("article", node.role);
  element.id = `message-${node.id}`;
  element.setAttribute(
    "aria-label",
    node.role === "tool" ? `${NAMES.tool} ${node.callName}` : NAMES[node.role],
  );
  return element;
}

/** Displays the message of a user, or the result of a tool. */
export function userView(node, actions) {
  const element = article(node);
  const files = make("div", "message-files");
  files.append(...node.files.map(preview));
  const text = make("div", "text", node.text);
  element.append(files, text);
  const edit = makeButton("Edit", () => startEdit(node, element, actions), {
    name: "Edit this message",
  });
  element.append(buttons(node, actions, node.role === "user" ? [edit] : []));
  return element;
}

/** Replaces the message by a field with its text. */
export function startEdit(node, element, actions) {
  const form = make("form", "edit");
  const field = make("textarea");
  field.value = node.text;
  field.rows = Math.min(12, node.text.split("\n").length + 1);
  field.setAttribute("aria-label", "Edit the message");
  const save = make("button", "primary", node.role === "assistant" ? "Save" : "Send");
  const cancel = makeButton("Cancel", () => end());
  const row = make("div", "buttons");
  row.append(save, cancel);
  form.append(field, row);
  const before = [...element.childNodes];
  const end = () => {
    element.replaceChildren(...before);
    element.querySelector("button")?.focus();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (field.value.trim() || node.files.length) actions.edit(node, field.value.trim());
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") end();
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      form.requestSubmit();
    }
  });
  element.replaceChildren(form);
  field.focus();
}

/** Returns the buttons of a message, with those that choose between its branches. */
function buttons(node, actions, others) {
  const row = make("div", "buttons");
  const siblings = actions.siblings(node);
  const index = siblings.indexOf(node);
  if (siblings.length > 1) {
    const choose = (step) =>
      actions.select(siblings[(index + step + siblings.length) % siblings.length]);
    row.append(
      makeButton("‹", () => choose(-1), { name: "Previous branch" }),
      make("span", "branch", `${index + 1} / ${siblings.length}`),
      makeButton("›", () => choose(1), { name: "Next branch" }),
    );
  }
  row.append(
    makeButton("Copy", (event) => copyText(node.text, event.target), { name: "Copy this message" }),
    ...others,
  );
  return row;
}

/** Displays an answer, complete or while it is generated. */
export class AnswerView {
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.article = article(node);
    this.thought = make("details", "thought");
    this.thoughtSummary = make("summary");
    this.thoughtText = make("div", "text");
    this.thought.append(this.thoughtSummary, this.thoughtText);
    this.text = make("div", "markdown");
    this.calls = make("div");
    this.foot = make("footer", "", "…");
    this.article.append(this.thought, this.text, this.calls, this.foot);
    this.growing = new GrowingText(this.text);
    this.numCalls = -1; // length of what is displayed
    this.progress = ""; // tokens and speed while it is generated
    this.nextDraw = 0;
  }

  /** Draws what is new in one of the next frames, rarely if drawing is slow; `log` follows. */
  schedule(log) {
    this.frame ||= requestAnimationFrame((now) => {
      this.frame = 0;
      if (now < this.nextDraw) {
        this.schedule(log);
        return;
      }
      const started = performance.now();
      const isAtEnd = atEnd(log);
      this.draw();
      if (isAtEnd) log.scrollTop = log.scrollHeight; // lays the text out
      this.nextDraw = now + DRAW_SHARE * (performance.now() - started);
    });
  }

  draw(ended = false) {
    const { node } = this;
    if (!ended) this.foot.textContent = this.progress || "…";
    const reasoning = node.reasoning.trim();
    this.thought.hidden = !reasoning;
    if (reasoning) {
      this.thoughtSummary.textContent =
        ended || node.text || node.calls.length ? "Thoughts" : "Thinking…";
      this.thoughtText.textContent = reasoning;
    }
    this.growing.update(node.text.trimStart(), ended);
    const length = node.calls.reduce(
      (sum, call) => sum + call.function.name.length + call.function.arguments.length,
      0,
    );
    if (length === this.numCalls && !ended) return;
    this.numCalls = length;
    this.calls.replaceChildren(...node.calls.filter(Boolean).map(callCard));
  }

  /** Marks the answer as being generated. */
  start() {
    this.article.setAttribute("aria-busy", "true");
    return this;
  }

  finish() {
    cancelAnimationFrame(this.frame);
    this.draw(true);
    this.article.removeAttribute("aria-busy");
    this.foot.textContent = [this.node.model, this.node.footer, this.node.note]
      .filter(Boolean)
      .join(" · ");
    this.article.append(inspector(this.node), buttons(this.node, this.actions, this.others()));
    return this;
  }

  /** Returns the buttons that only answers have. */
  others() {
    const { node, actions, article: element } = this;
    const edit = makeButton("Edit", () => startEdit(node, element, actions), {
      name: "Edit this answer",
    });
    const again = makeButton("Regenerate", () => actions.regenerate(node), {
      name: "Regenerate this answer",
    });
    const rest = makeButton("Continue", () => actions.resume(node), {
      name: "Continue this answer",
    });
    const isCut = node.note && node.text.trim() && !node.calls.length;
    return isCut ? [edit, again, rest] : [edit, again];
  }
}

function callCard(call) {
  const card = make("div", "call");
  card.setAttribute("role", "group");
  card.setAttribute("aria-label", `Call of ${call.function.name}`);
  card.append(make("p", "call-name", call.function.name));
  card.append(codeBlock(indentJson(call.function.arguments) || call.function.arguments, "json"));
  return card;
}
