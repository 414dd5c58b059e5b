// The graders of `multi`, each with a form of its own, and the formula over their rewards.

import { button, el } from "../../dom.js";
import { field, idOf, input } from "./fields.js";

const FORMULA = "calculate_output";

// `form(at)`: the form of the grader at that path; `first`: the initial value of another grader.
export function multiParts(draft, at, { form, first }) {
  const list = el("div", { class: "stack" });
  const graders = () => draft.get(`${at}.graders`) ?? {};
  let shown;
  const draw = () => {
    const names = Object.keys(graders());
    if (names.join() === shown) return;
    shown = names.join();
    list.replaceChildren(...names.map((name) => part(name, names.length > 1)));
  };
  const part = (name, isRemovable) => el("fieldset", { class: "grader-part" },
    el("legend", {}, el("code", {}, name)), form(`${at}.graders.${name}`),
    isRemovable && el("div", { class: "row" }, button("Remove", () => remove(name), { kind: "small", "aria-label": `Remove ${name}` })));
  const remove = (name) => {
    const { [name]: _removed, ...rest } = graders();
    draft.set(`${at}.graders`, rest);
  };
  const add = () => {
    const name = freeName(graders());
    draft.set(`${at}.graders`, { ...graders(), [name]: first() });
    const formula = draft.get(`${at}.${FORMULA}`);
    draft.set(`${at}.${FORMULA}`, formula ? `${formula} + ${name}` : name);
    document.getElementById(idOf(`${at}.graders.${name}.type`))?.focus();
  };
  draft.listen(draw);
  draw();
  return [list, el("div", { class: "row" }, button("Add a grader", add)),
    field(`${at}.${FORMULA}`, "Formula", "The reward, from the names of the graders. For example, 0.8 * correct + 0.2 * style.",
      input(draft, `${at}.${FORMULA}`))];
}

function freeName(graders) {
  let at = Object.keys(graders).length + 1;
  while (`part${at}` in graders) at += 1;
  return `part${at}`;
}
