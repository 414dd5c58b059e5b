// Commands to take to a terminal, with a button that copies them.

import { announce, button, el } from "./dom.js";

const SHOWN_SECONDS = 2;

// `label`: what the commands do; `text`: one command a line.
export function commands(label, text) {
  const shown = el("pre", { class: "code", tabindex: 0, "aria-label": label }, text);
  const pressed = button("Copy", async () => {
    const said = (await copied(shown)) ? "Copied" : "Press Ctrl + C";
    announce(said);
    pressed.textContent = said;
    setTimeout(() => (pressed.textContent = "Copy"), 1000 * SHOWN_SECONDS);
  }, { kind: "small", "aria-label": `Copy: ${label}` });
  return el("div", { class: "commands" }, el("div", { class: "row" }, el("h3", {}, label), pressed), shown);
}

// → whether it is in the clipboard; else it is selected. Pages that came without TLS have no `clipboard`.
async function copied(box) {
  getSelection().selectAllChildren(box);
  if (!navigator.clipboard) return document.execCommand("copy");
  return navigator.clipboard.writeText(box.textContent).then(() => true, () => false);
}
