// The tokens of an answer: coloured by probability, with the alternatives of the chosen one.

import { formatWhole, make, makeButton } from "./dom.js";

const PER_PAGE = 300;
const BOUNDS = [0.9, 0.6, 0.3, 0.1]; // of the classes p0 to p4

/** Returns a token's text with spaces and line breaks made visible. */
const visible = (text) =>
  text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "∅";
const percent = (logprob) => {
  const value = 100 * Math.exp(logprob);
  return `${value >= 99.95 || value < 0.05 ? value.toPrecision(3) : value.toFixed(1)} %`;
};

/** Returns elements for tokens `[text, logprob, time, [[text, logprob], ...]]`. */
export function tokenList(tokens) {
  const list = make("div", "tokens");
  list.tabIndex = 0;
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Tokens of the answer");
  const detail = make("div", "token-detail");
  detail.setAttribute("role", "status");
  const pager = make("div", "buttons");
  let page = 0;
  let chosen = -1;

  const choose = (index) => {
    if (index < 0 || index >= tokens.length) return;
    const next = Math.floor(index / PER_PAGE);
    if (next !== page) draw(next);
    list.querySelector("[aria-selected=true]")?.setAttribute("aria-selected", "false");
    const option = list.children[index - page * PER_PAGE];
    option.setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", option.id);
    option.scrollIntoView({ block: "nearest" });
    chosen = index;
    detail.replaceChildren(...details(tokens, index));
  };
  const draw = (next) => {
    page = next;
    const first = page * PER_PAGE;
    list.replaceChildren(...tokens.slice(first, first + PER_PAGE).map(chip));
    const pages = Math.ceil(tokens.length / PER_PAGE);
    pager.hidden = pages < 2;
    pager.replaceChildren(
      makeButton("‹", () => draw((page + pages - 1) % pages), { name: "Previous tokens" }),
      make(
        "span",
        "branch",
        `${formatWhole(first + 1)} to ${formatWhole(Math.min(first + PER_PAGE, tokens.length))} ` +
          `of ${formatWhole(tokens.length)}`,
      ),
      makeButton("›", () => draw((page + 1) % pages), { name: "Next tokens" }),
    );
  };
  list.addEventListener("click", ({ target }) => {
    const index = [...list.children].indexOf(target);
    if (index >= 0) choose(page * PER_PAGE + index);
  });
  list.addEventListener("keydown", (event) => {
    const moves = {
      ArrowRight: chosen + 1,
      ArrowDown: chosen + 1,
      ArrowLeft: chosen - 1,
      ArrowUp: chosen - 1,
      Home: 0,
      End: tokens.length - 1,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    choose(moves[event.key]);
  });
  draw(0);
  const hint = make(
    "p",
    "hint",
    "Darker tokens were less probable. Press one, or use the arrow keys.",
  );
  return [list, pager, detail, hint];
}

let numChips = 0;

function chip([text, logprob]) {
  const probability = Math.exp(logprob);
  const level = BOUNDS.findIndex((bound) => probability >= bound);
  const option = make("span", `token p${level < 0 ? BOUNDS.length : level}`, visible(text));
  option.id = `token-${(numChips += 1)}`;
  option.setAttribute("role", "option");
  option.setAttribute("aria-selected", "false");
  return option;
}

function details(tokens, index) {
  const [text, logprob, time, alternatives] = tokens[index];
  const gap = index ? time - tokens[index - 1][2] : 0;
  const after = index ? `, ${gap.toFixed(1)} ms after the one before` : "";
  const heading = make(
    "p",
    "",
    `Token ${index + 1}: ${visible(text)} with ${percent(logprob)}${after}`,
  );
  const table = make("table");
  const head = make("tr");
  for (const name of ["Alternative", "Probability"]) {
    const cell = make("th", "", name);
    cell.scope = "col";
    head.append(cell);
  }
  table.append(
    head,
    ...alternatives.map(([other, value]) => {
      const row = make("tr", other === text ? "chosen" : "");
      row.append(make("td", "", visible(other)), make("td", "", percent(value)));
      return row;
    }),
  );
  return alternatives.length ? [heading, table] : [heading];
}
