// The checks inside a reward: the tests of `code_tests`, the steps of `process`.

import { el, number } from "./dom.js";

// `parts`: part → [{label, passed, score, got, expected, detail}] of the API. → an element per part.
export function explanations(parts) {
  return Object.entries(parts ?? {}).map(([name, entries]) => {
    const failed = entries.filter((one) => one.passed === false).length;
    return el("details", { class: "checks", open: failed > 0 },
      el("summary", {}, `${name}: ${failed ? `${failed} failed` : "all passed"}`),
      el("ul", {}, entries.map(check)));
  });
}

// `parts`: part → what its code printed. → an element per part.
export function prints(parts) {
  return Object.entries(parts ?? {}).map(([name, text]) =>
    el("details", { open: true }, el("summary", {}, `${name} printed`), el("pre", { class: "code", tabindex: 0 }, text)));
}

function check(one) {
  const outcome = { true: "passed", false: "failed" }[one.passed] ?? "more";
  return el("li", { class: outcome },
    el("p", {}, el("span", { class: "unseen" }, outcome === "more" ? "" : `${outcome}: `), one.label,
      one.score !== null && el("b", { class: "numeric" }, number(one.score))),
    one.got && el("p", {}, one.score === null && el("span", { class: "faint" }, "got "), el("code", { class: "text" }, one.got)),
    one.expected && el("p", {}, el("span", { class: "faint" }, "expected "), el("code", { class: "text" }, one.expected)),
    one.detail && el("p", { class: one.passed === false ? "problem" : "faint" }, one.detail));
}
