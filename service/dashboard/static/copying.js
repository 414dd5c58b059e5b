// Commands for a terminal, with a button that copies them.

import { announce, button, el } from "./dom.js";

const SHOWN_SECONDS = 2;

// `label`: what the commands do; `text`: one command per line.
export function commands(label, text) {
  const shown = el("pre", { class: "code", tabindex: 0, "aria-label": label }, text);
  const pressed = button("Copy", async () => {
    const outcome = (await copied(shown)) ? "Copied" : "Press Ctrl + C";
    announce(outcome);
    pressed.textContent = outcome;
    setTimeout(() => (pressed.textContent = "Copy"), 1000 * SHOWN_SECONDS);
  }, { kind: "small", "aria-label": `Copy: ${label}` });
  return el("div", { class: "commands" }, el("div", { class: "row" }, el("h3", {}, label), pressed), shown);
}

// → whether it was copied; otherwise it is selected, as pages without TLS have no `clipboard`.
async function copied(box) {
  getSelection().selectAllChildren(box);
  if (!navigator.clipboard) return document.execCommand("copy");
  return navigator.clipboard.writeText(box.textContent).then(() => true, () => false);
}
