// The selection of rollouts: split, step or all steps, a filter, parts that fired and did not.
// Boundary: the form and its state; the page sends the requests.

import { button, el, optionsOf } from "../../dom.js";
import { isTruncated } from "./ends.js";

export const NAMES = {
  no_signal: "No signal",
  truncated: "Truncated",
  grader_error: "Grader error",
  best: "Best first",
  worst: "Worst first",
};
const SPLITS = { train: "Training", validation: "Validation", retention: "Retention" };
const REST_MS = 120;

export class Controls {
  // `overview`: the API's; `query`: the address's; `changed` is called after each change of the state.
  constructor(overview, query, changed) {
    this.overview = overview;
    this.changed = changed;
    const steps = (name) => this.stepsOf(name).length;
    const split = ["train", "validation", "retention"].find((name) => query.get("split") === name && steps(name));
    this.state = {
      split: split ?? overview.data.find((one) => one.split === "train")?.split ?? overview.data[0]?.split ?? "train",
      step: query.get("step") === "all" ? "all" : this.nearest(split ?? "train", query.get("step")),
      filter: query.get("filter") in NAMES ? query.get("filter") : "",
      fired: overview.parts.includes(query.get("fired")) ? query.get("fired") : "",
      not_fired: overview.parts.includes(query.get("not_fired")) ? query.get("not_fired") : "",
    };
    this.root = el("form", { class: "panel controls", onsubmit: (event) => event.preventDefault() });
    this.build();
  }

  get hasSteps() {
    return this.overview.data.length > 0;
  }

  get steps() {
    return this.stepsOf(this.state.split);
  }

  // Groups of the selection, if that is known without reading them.
  get numGroups() {
    const { split, step, filter, fired, not_fired: notFired } = this.state;
    if (filter || fired || notFired) return null;
    const { steps = [], groups = [] } = this.overview.data.find((one) => one.split === split) ?? {};
    return step === "all" ? groups.reduce((sum, count) => sum + count, 0) : groups[steps.indexOf(step)];
  }

  stepsOf(split) {
    return this.overview.data.find((one) => one.split === split)?.steps ?? [];
  }

  // The selected step, otherwise the newest.
  nearest(split, wanted) {
    const steps = this.stepsOf(split);
    return steps.includes(Number(wanted)) && wanted !== null ? Number(wanted) : (steps.at(-1) ?? 0);
  }

  // As the API's parameters.
  query() {
    const { step, ...rest } = this.state;
    return step === "all" ? rest : { ...rest, step };
  }

  // Whether a completion is selected, by the API's own rule.
  admits(completion) {
    const { filter, fired, not_fired: notFired } = this.state;
    if (filter === "truncated" && !isTruncated(completion)) return false;
    const isBroken = Object.keys(completion.errors).length > 0 || completion.reward === null;
    if (filter === "grader_error" && !isBroken) return false;
    const score = (part) => completion.parts[part] ?? null;
    return (!fired || (score(fired) !== null && score(fired) > 0)) &&
      (!notFired || (score(notFired) !== null && score(notFired) <= 0));
  }

  set(changes) {
    Object.assign(this.state, changes);
    this.paint();
    clearTimeout(this.timer); // a dragged slider passes many steps
    this.timer = setTimeout(this.changed, REST_MS);
  }

  clear() {
    this.set({ filter: "", fired: "", not_fired: "" });
  }

  // A newer overview of a running job.
  offer(overview) {
    const before = this.steps.at(-1);
    const isNew = !this.hasSteps;
    this.overview = overview;
    if (isNew && this.hasSteps) {
      this.state.split = overview.data[0].split;
      this.state.step = this.steps.at(-1);
    }
    if (isNew || this.splits.options.length !== overview.data.length) this.build();
    this.paint();
    if (!isNew && this.steps.at(-1) !== before) this.newest.classList.add("fresh");
  }

  // ---- elements

  build() {
    this.splits = select("split", this.overview.data.map((one) => [one.split, SPLITS[one.split]]),
      (split) => this.set({ split, step: this.state.step === "all" ? "all" : this.nearest(split, this.state.step) }));
    this.slider = el("input", { type: "range", id: "step", min: 0, step: 1,
      oninput: () => this.set({ step: this.steps[this.slider.value] }) });
    this.number = el("input", { type: "number", id: "step-number", class: "jump", min: 0, "aria-label": "Step number",
      onchange: () => this.jump(this.number.value) });
    this.shown = el("span", { class: "numeric" });
    this.back = button("‹", () => this.move(-1), { kind: "small", "aria-label": "Previous step" });
    this.forth = button("›", () => this.move(1), { kind: "small", "aria-label": "Next step" });
    this.newest = button("", () => this.set({ step: this.steps.at(-1) }), { kind: "small newest" });
    this.all = el("input", { type: "checkbox", id: "all", onchange: () =>
      this.set({ step: this.all.checked ? "all" : this.steps.at(-1) }) });
    this.filter = select("filter", [["", "All groups"], ...Object.entries(NAMES)], (filter) => this.set({ filter }));
    const parts = this.overview.parts.map((part) => [part, part]);
    this.fired = select("fired", [["", "any part"], ...parts], (fired) => this.set({ fired }));
    this.notFired = select("not-fired", [["", "any part"], ...parts], (part) => this.set({ not_fired: part }));
    this.root.replaceChildren(
      el("div", { class: "row steps" }, el("label", { for: "step" }, "Step"), this.back, this.slider, this.forth,
        this.number, this.shown, this.newest, el("span", { class: "row" }, this.all, el("label", { for: "all" }, "All steps"))),
      el("div", { class: "row choices" },
        labelled("Split", this.splits), labelled("Show", this.filter),
        parts.length > 1 && labelled("Rewarded by", this.fired), parts.length > 1 && labelled("Not rewarded by", this.notFired)));
    this.paint();
  }

  // To this step, otherwise to the nearest one with rollouts.
  jump(wanted) {
    const distance = (step) => Math.abs(step - Number(wanted));
    this.set({ step: this.steps.reduce((best, step) => (distance(step) < distance(best) ? step : best)) });
  }

  move(by) {
    if (this.state.step === "all") return;
    const at = this.steps.indexOf(this.state.step);
    this.set({ step: this.steps[Math.max(0, Math.min(at + by, this.steps.length - 1))] });
  }

  // Updates the elements from the state.
  paint() {
    const { split, step, filter, fired, not_fired: notFired } = this.state;
    const steps = this.steps;
    const isAll = step === "all";
    const at = isAll ? steps.length - 1 : steps.indexOf(step);
    this.root.hidden = !this.hasSteps;
    this.splits.value = split;
    this.slider.max = Math.max(0, steps.length - 1);
    this.slider.value = at;
    this.slider.setAttribute("aria-valuetext", isAll ? "all steps" : `step ${step}`);
    this.number.value = isAll ? "" : step;
    this.number.max = steps.at(-1) ?? 0;
    this.shown.textContent = `of ${steps.at(-1)}`;
    this.newest.textContent = `Newest: ${steps.at(-1)}`;
    this.newest.hidden = isAll || step === steps.at(-1);
    if (this.newest.hidden) this.newest.classList.remove("fresh");
    this.back.disabled = isAll || at <= 0;
    this.forth.disabled = isAll || at >= steps.length - 1;
    this.slider.disabled = isAll || steps.length < 2;
    this.all.checked = isAll;
    this.filter.value = filter;
    this.fired.value = fired;
    this.notFired.value = notFired;
  }
}

function select(id, options, choose) {
  return el("select", { id, onchange: (event) => choose(event.target.value) }, optionsOf(options));
}

function labelled(text, control) {
  return el("span", { class: "row" }, el("label", { for: control.id }, text), control);
}
