// A model's or an environment's text, cut in height if it is long. Boundary: a text in, elements out.

import { button, el } from "../../dom.js";

const LONG = { characters: 600, lines: 14 };

export const isLong = (content) => content.length > LONG.characters || content.split("\n").length > LONG.lines;

// A long text is cut in height until its button is pressed; then it scrolls.
export function longText(content, kind = "model-text") {
  const shown = el("p", { class: `text ${kind}` }, content);
  if (!isLong(content)) return shown;
  shown.classList.add("cut-off");
  shown.tabIndex = 0;
  const more = button("Show all", () => {
    const isCut = shown.classList.toggle("cut-off");
    more.textContent = isCut ? "Show all" : "Show less";
    more.setAttribute("aria-expanded", !isCut);
  }, { kind: "small quiet", "aria-expanded": false });
  return [shown, more];
}
