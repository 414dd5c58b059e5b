// A probe's advice as changes of the draft.

import { button, el } from "../../dom.js";
import { methodOf } from "./draft.js";
import { idOf, labelOf } from "./fields.js";

// The button that takes the values of `advice` into the draft and reports the changed fields; null if there are none.
export function adviceButton(advice, draft) {
  const settable = advice.filter((one) => one.value !== null);
  if (!settable.length) return null;
  const report = el("p", { class: "small", role: "status" });
  const take = button("Apply the advice", () => {
    const changes = settable.map((one) => changed(draft, one));
    report.textContent = `Changed: ${changes.join("; ")}.`;
    take.disabled = true;
  });
  return el("div", { class: "stack" }, el("div", { class: "row" }, take), report);
}

// → "Completions per prompt 8 → 16"
function changed(draft, { param, value }) {
  const before = draft.get(param) ?? "default";
  if (param === "method.type") draft.set("method", methodOf(value));
  else draft.set(param, value);
  const folded = document.getElementById(idOf(param))?.closest("details");
  if (folded) folded.open = true;
  return `${labelOf(param)} ${before} → ${value}`;
}
