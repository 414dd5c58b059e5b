// The source of a python grader, as code beside the grader's JSON.

import { codeEditor, markLine } from "../../code_editor.js";
import { el } from "../../dom.js";

export class CodeField {
  // `json`, `item`: the text areas with the grader and with the row.
  constructor(json, item) {
    this.json = json;
    this.area = el("textarea", { id: "code", rows: 8, spellcheck: "false", "aria-describedby": "code-problem" });
    this.problem = el("p", { class: "problem", role: "alert", id: "code-problem" });
    this.root = el("div", { class: "field", hidden: true }, el("label", { for: "code" }, "Code"), this.area, this.problem);
    this.set = codeEditor(this.area, () => Object.keys(read(item.value)));
    this.area.addEventListener("input", () => this.write());
    json.addEventListener("input", () => this.show());
  }

  // Shows the source of the JSON's grader; hidden if that is not a python grader.
  show() {
    const { type, source } = read(this.json.value);
    this.root.hidden = type !== "python" || typeof source !== "string";
    if (!this.root.hidden) this.set(source);
    this.refuse("");
  }

  write() {
    this.refuse("");
    this.json.value = JSON.stringify({ ...read(this.json.value), source: this.area.value }, null, 2);
  }

  owns(param) {
    return param === "grader.source" && !this.root.hidden;
  }

  refuse(message) {
    this.problem.textContent = message.replace("grader.source: ", "").replace(/, got .*/s, ".");
    const control = document.getElementById("code");
    if (message) control?.setAttribute("aria-invalid", "true");
    else control?.removeAttribute("aria-invalid");
    this.mark(message);
  }

  // Marks the line that an error of the grader names.
  mark(text) {
    markLine(document.getElementById("code"), text);
  }
}

// The JSON's object; {} if the text is something else.
function read(text) {
  try {
    const found = JSON.parse(text);
    return typeof found === "object" && found !== null ? found : {};
  } catch {
    return {};
  }
}
