// The guards of a job: for each watched value an action, a threshold and a patience.

import { el } from "../../dom.js";

// [watch, label, the rule]
const GUARDS = [
  ["kl", "KL divergence", "Nats per completion away from the reference model, at least."],
  ["no_signal", "Groups without signal", "Share of groups whose rewards are all equal, at least."],
  ["entropy", "Entropy", "Share of the initial entropy, at most."],
  ["truncation", "Truncated completions", "Share of completions, at least."],
  ["grader_errors", "Grader errors", "Share of completions, at least."],
  ["reward_plateau", "Reward plateau", "Rise of the mean reward within 100 steps, at most."],
  ["reward_length", "Reward follows length", "Correlation of reward and length, at least."],
  ["sampler_difference", "Sampler difference", "Nats per token between sampler and trainer, at least."],
];
const ACTIONS = [["warn", "Warn"], ["pause", "Pause"], ["stop", "Stop"], ["raise_beta", "Raise β"], ["", "Off"]];
const ALL = GUARDS.map(([watch]) => ({ watch }));

// Without guards in the request, every rule warns. Several guards of one rule are edited as JSON.
export function guardsPart(draft, at) {
  const rows = new Map(GUARDS.map(([watch, label]) => [watch, controls(watch, label, () => draft.set(at, read(rows)))]));
  const write = () => {
    const given = draft.get(at) ?? ALL;
    if (JSON.stringify(read(rows) ?? ALL) === JSON.stringify(given)) return;
    for (const [watch, row] of rows) show(row, given.find((guard) => guard.watch === watch));
  };
  draft.listen(write);
  write();
  return el("fieldset", { class: "guards", "data-param": at },
    el("legend", {}, "Guards"),
    el("p", { class: "hint" }, "What happens when a value passes its threshold for some steps in a row. Empty = the default."),
    GUARDS.map(([watch, label, rule]) => el("div", { class: "guard" },
      el("p", {}, label, el("span", { class: "hint" }, rule)), Object.values(rows.get(watch)))),
    el("p", { class: "problem small", id: `${at}-problem` }));
}

function controls(watch, label, change) {
  const number = (name, props) => el("input", { type: "number", "aria-label": `${label}: ${name}`, autocomplete: "off", oninput: change, ...props });
  return {
    action: el("select", { "aria-label": `${label}: action`, onchange: change }, ACTIONS.map(([value, text]) => el("option", { value }, text))),
    threshold: number("threshold", { step: "any", placeholder: "threshold" }),
    patience: number("steps", { min: 1, step: 1, placeholder: "5 steps" }),
  };
}

function show({ action, threshold, patience }, guard) {
  action.value = guard ? guard.action ?? "warn" : "";
  threshold.value = guard?.threshold ?? "";
  patience.value = guard?.patience ?? "";
}

// → guards of the request; undefined if all are as without any
function read(rows) {
  const guards = [...rows].filter(([, { action }]) => action.value).map(([watch, { action, threshold, patience }]) => ({
    watch, ...(action.value !== "warn" && { action: action.value }),
    ...(threshold.value !== "" && { threshold: threshold.valueAsNumber }), ...(patience.value !== "" && { patience: patience.valueAsNumber }),
  }));
  return JSON.stringify(guards) === JSON.stringify(ALL) ? undefined : guards;
}
