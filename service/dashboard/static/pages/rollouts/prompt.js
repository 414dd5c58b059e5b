// A group's prompt as messages, on demand as the model read it, and the other fields of its row.

import { button, el } from "../../dom.js";

const SHORT = 200; // characters of JSON on one line

export class Prompt {
  constructor() {
    this.isTemplate = false;
    this.toggle = button("Template", () => this.turn(), { kind: "small toggle", title: "The prompt as the model read it" });
    this.text = el("div", { class: "messages", tabindex: 0, role: "region", "aria-label": "Prompt" });
    this.row = el("div", { class: "row-data" });
    this.root = el("div", { class: "panel asked" },
      el("div", {}, el("div", { class: "row between" }, el("h2", {}, "Prompt"), this.toggle), this.text), this.row);
  }

  show(group) {
    this.group = group;
    const fields = Object.entries(group.reference);
    this.row.hidden = !fields.length;
    this.row.replaceChildren(el("h2", {}, "Reference"), el("dl", { class: "reference", tabindex: 0 },
      fields.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, written(value))))));
    this.paint();
  }

  turn() {
    this.isTemplate = !this.isTemplate;
    this.paint();
  }

  paint() {
    const { messages, prompt } = this.group;
    this.toggle.hidden = !messages.length;
    this.toggle.setAttribute("aria-pressed", this.isTemplate);
    const isPlain = this.isTemplate || !messages.length;
    this.text.replaceChildren(...(isPlain
      ? [el("p", { class: "text mono template" }, prompt)]
      : messages.map(message)));
  }
}

function message({ role, content }) {
  return el("div", { class: `message ${role}` }, el("p", { class: "role" }, role), el("p", { class: "text" }, content));
}

// Text stays text; anything else is JSON.
function written(value) {
  if (typeof value === "string") return el("span", { class: "text" }, value);
  if (value === null || typeof value !== "object") return el("code", {}, JSON.stringify(value));
  const line = JSON.stringify(value);
  return line.length < SHORT ? el("code", {}, line) : el("pre", { class: "code", tabindex: 0 }, JSON.stringify(value, null, 1));
}
