// Fields of the form: a label, a control bound to a path of the draft, a hint, and room for its problems.
// Boundary: single fields; `form.js` arranges them.

import { codeEditor, markLine } from "../../code_editor.js";
import { el, isPresent, number, optionsOf } from "../../dom.js";
import { settingLabel } from "../../labels.js";

// The field of the form for `param` of the request: label, control, hint, and room for its problems.
export function paramField(param, label, hint, control, ...more) {
  const id = idOf(param);
  control.id = id;
  control.setAttribute("aria-describedby", `${id}-hint ${id}-problem`);
  return el("div", { class: "field", "data-param": param },
    el("label", { for: id }, label), control,
    hint && el("p", { class: "hint", id: `${id}-hint` }, hint), more,
    el("p", { class: "problem small", id: `${id}-problem` }));
}

export const idOf = (param) => `new-${param.replaceAll(".", "-")}`;

// The label of the form's field for `param`, or its usual one if the form does not show it.
export const labelOf = (param) => document.querySelector(`label[for="${idOf(param)}"]`)?.textContent ?? settingLabel(param);

// A text or number input for the value at `param`; empty: the field is left out of the request. A number input shows
// nothing for a word such as "auto".
export function input(draft, param, { kind = "text", parse = (text) => text, format = String, ...props } = {}) {
  const control = el("input", { type: kind === "number" ? "number" : "text", autocomplete: "off", spellcheck: "false", ...props });
  if (kind === "number") control.step = props.step ?? "any";
  return tied(draft, param, control, {
    read: () => (control.value.trim() === "" ? undefined : kind === "number" ? control.valueAsNumber : parse(control.value)),
    write: (value) => { control.value = !isPresent(value) || (kind === "number" && isNaN(value)) ? "" : format(value); },
  });
}

// `options`: [value, text] each; a value that is not among them is added.
export function select(draft, param, options, onpick) {
  const control = el("select", {}, optionsOf(options));
  return tied(draft, param, control, {
    read: () => (onpick ? onpick(control.value) : control.value || undefined),
    write: (value) => {
      const wanted = value ?? "";
      if (![...control.options].some((option) => option.value === wanted)) control.append(el("option", { value: wanted }, wanted));
      control.value = wanted;
    },
    event: "change",
  });
}

// A Python grader at `param`.
export function codeArea(draft, param, props) {
  const control = el("textarea", { spellcheck: "false", ...props });
  const set = codeEditor(control, () => draft.columns ?? []);
  return tied(draft, param, control, { read: () => control.value, write: (value) => set(value ?? "") });
}

// JSON at a path (null: the whole request), with an error message while it is invalid.
export function jsonArea(draft, param, props) {
  const control = el("textarea", { spellcheck: "false", ...props });
  const complaint = el("p", { class: "problem small", role: "alert" });
  const shown = () => JSON.stringify(param === null ? draft.body : draft.get(param), null, 2) ?? "";
  const write = () => {
    complaint.textContent = "";
    control.removeAttribute("aria-invalid");
    delete control.dataset.unread;
    if (document.activeElement !== control) control.value = shown();
  };
  control.addEventListener("input", () => {
    try {
      const value = JSON.parse(control.value);
      if (typeof value !== "object" || value === null || Array.isArray(value)) throw new Error("not a JSON object");
      if (param === null) draft.replace(value);
      else draft.set(param, value);
    } catch (error) {
      complaint.textContent = `Not used yet: ${error.message}`;
      control.setAttribute("aria-invalid", "true");
      control.dataset.unread = "";
    }
  });
  control.addEventListener("blur", () => "unread" in control.dataset || write());
  draft.watch(write);
  return [control, complaint];
}

function tied(draft, param, control, { read, write, event = "input" }) {
  control.addEventListener(event, () => {
    const value = read();
    if (value !== draft.get(param) && !Number.isNaN(value)) draft.set(param, value);
  });
  const refresh = () => document.activeElement !== control && write(draft.get(param));
  draft.watch(refresh);
  return control;
}

// Shows problems at their fields; `byParam`: Map of param → {messages, count}, of which `messages` may be the first ones
// only. All others are cleared.
export function mark(root, byParam) {
  for (const box of root.querySelectorAll("[data-param]")) {
    const { messages, count } = byParam.get(box.dataset.param) ?? { messages: [], count: 0 };
    const shown = count > 2 ? [messages[0], `And ${number(count - 1)} more`] : messages;
    box.querySelector("[id$='-problem']").textContent = shown.map((text) => text.replace(/[^.?!]$/, "$&.")).join(" ");
    const control = box.querySelector("input, select, textarea");
    if (messages.length) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
    markLine(control, messages.join("\n"));
  }
}
