// The guards of a job: for each watched value one or more of an action, a threshold and a patience.

import { button, el, optionsOf } from "../../dom.js";

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

// Without guards in the request, every rule warns.
export function guardsPart(draft, at) {
  const rules = new Map(GUARDS.map(([watch, label]) => [watch, new Rule(label, () => draft.set(at, read(rules)))]));
  const write = () => {
    const given = draft.get(at) ?? ALL;
    if (JSON.stringify(read(rules) ?? ALL) === JSON.stringify(given)) return;
    for (const [watch, rule] of rules) rule.show(given.filter((guard) => guard.watch === watch));
  };
  draft.watch(write);
  return el("fieldset", { class: "guards", "data-param": at },
    el("legend", {}, "Guards"),
    el("p", { class: "hint" }, "What happens when a value passes its threshold for some steps in a row. Empty = the default."),
    GUARDS.map(([watch, label, rule]) => el("div", { class: "guard" },
      el("p", {}, label, el("span", { class: "hint" }, rule)), rules.get(watch).root)),
    el("p", { class: "problem small", id: `${at}-problem` }));
}

// The guards of one rule, a line each; "Off" is no guard.
class Rule {
  constructor(label, change) {
    this.label = label;
    this.change = change;
    this.lines = [];
    this.list = el("div", { class: "guard-lines" });
    const add = button("Add", () => {
      this.add({ action: "stop" }).action.focus();
      change();
    }, { kind: "small", "aria-label": `${label}: add a guard` });
    this.root = el("div", { class: "guard-rule" }, this.list, add);
    this.show([]);
  }

  show(guards) {
    this.lines = [];
    this.list.replaceChildren();
    for (const guard of guards.length ? guards : [null]) this.add(guard);
  }

  add(guard) {
    const line = controls(this.lines.length ? `${this.label} ${this.lines.length + 1}` : this.label, guard, this.change);
    this.lines.push(line);
    this.list.append(el("div", { class: "guard-line" }, Object.values(line)));
    return line;
  }
}

function controls(label, guard, change) {
  const number = (name, props) => el("input", { type: "number", "aria-label": `${label}: ${name}`, autocomplete: "off", oninput: change, ...props });
  const line = {
    action: el("select", { "aria-label": `${label}: action`, onchange: change }, optionsOf(ACTIONS)),
    threshold: number("threshold", { step: "any", placeholder: "threshold", value: guard?.threshold ?? "" }),
    patience: number("steps", { min: 1, step: 1, placeholder: "5 steps", value: guard?.patience ?? "" }),
  };
  line.action.value = guard ? guard.action ?? "warn" : "";
  return line;
}

// → guards of the request; undefined if all are as without any
function read(rules) {
  const lines = [...rules].flatMap(([watch, { lines }]) => lines.map((line) => ({ watch, ...line })));
  const guards = lines.filter(({ action }) => action.value).map(({ watch, action, threshold, patience }) => ({
    watch, ...(action.value !== "warn" && { action: action.value }),
    ...(threshold.value !== "" && { threshold: threshold.valueAsNumber }), ...(patience.value !== "" && { patience: patience.valueAsNumber }),
  }));
  return JSON.stringify(guards) === JSON.stringify(ALL) ? undefined : guards;
}
