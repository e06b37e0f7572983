// Views: on a narrow screen one at a time; on a wide one settings or engine next to the chat.

const SIDE = ["settings", "engine"];

export const isNarrow = () => matchMedia("(max-width: 1100px)").matches;

/** Displays a view. */
export function switchView(view) {
  document.body.dataset.view = view;
  if (SIDE.includes(view)) document.body.dataset.side = view;
  for (const button of document.querySelectorAll("nav button")) {
    const current = button.closest("#side-tabs") ? document.body.dataset.side : view;
    button.setAttribute("aria-pressed", String(button.dataset.view === current));
  }
}

export function connectViews() {
  for (const button of document.querySelectorAll("nav button"))
    button.addEventListener("click", () => switchView(button.dataset.view));
}
