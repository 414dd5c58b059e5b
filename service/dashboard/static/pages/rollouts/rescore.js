// A pasted grader applied to this job's rollouts: what would change. The job itself stays unchanged.

import { jobPath, post } from "../../api.js";
import { announce, button, counted, el, failed, field, loading, number, percent } from "../../dom.js";
import { ownMethod } from "../new/draft.js";

export class Rescore {
  // `query`: → the current selection; `answered`: called with the API's response, and with null when it is closed.
  constructor(job, query, signal, answered) {
    this.id = job.id;
    this.query = query;
    this.signal = signal;
    this.answered = answered;
    this.grader = el("textarea", { id: "rescore-grader", rows: 10, spellcheck: "false" });
    this.grader.value = JSON.stringify(graderOf(job), null, 2);
    this.limit = el("input", { id: "rescore-limit", type: "number", min: 1, max: 2000, value: 512 });
    this.run = button("Rescore", () => this.score(), { kind: "primary" });
    this.result = el("div", { class: "result" });
    this.root = el("details", { class: "panel rescore" },
      el("summary", {}, "Test another grader on these rollouts"),
      el("p", { class: "hint" }, "Rescores the shown step, or the newest completions of all steps. The job does not change."),
      field("Grader (JSON)", this.grader),
      el("div", { class: "row" }, el("label", { for: "rescore-limit" }, "Max completions"), this.limit, this.run),
      this.result);
  }

  async score() {
    const body = this.body();
    if (!body) return;
    this.run.disabled = true;
    loading(this.result, "Scoring");
    try {
      this.show(await post(jobPath(this.id, "/rollouts/rescore"), body, { signal: this.signal }));
    } catch (error) {
      if (this.signal.aborted) return;
      if (error.status === undefined) throw error;
      failed(this.result, error);
    } finally {
      this.run.disabled = false;
    }
  }

  body() {
    try {
      const { step, split } = this.query();
      const grader = JSON.parse(this.grader.value);
      return { grader, split, from_step: step, to_step: step, limit: Number(this.limit.value) };
    } catch (error) {
      failed(this.result, new Error(`This is not JSON: ${error.message}`));
      return null;
    }
  }

  show(answer) {
    const { summary } = answer;
    const { from_step: first, to_step: last } = summary;
    this.answered(answer);
    this.result.replaceChildren(
      el("p", { class: "hint" }, `${counted(summary.num_completions, "completion")} in ${counted(summary.num_groups, "group")}, `,
        `${first === last ? `step ${first}` : `steps ${first} to ${last}`}; advantages: ${answer.advantage}. `,
        "The groups above show the new scores."),
      ...comparison(summary),
      ...summary.errors.map((error) => el("p", { class: "note bad" },
        `${number(error.count)} × ${error.part}: ${error.message}`)),
      button("Clear", () => this.forget()));
    announce("Rescored");
  }

  forget() {
    this.answered(null);
    this.result.replaceChildren();
  }
}

function graderOf(job) {
  const method = ownMethod(job.method);
  return method[method.type].grader ?? {};
}

function comparison({ before, after, ...summary }) {
  const rows = [
    ["Mean reward", number(before.mean_reward), number(after.mean_reward)],
    ["Groups with signal", percent(before.share_with_signal), percent(after.share_with_signal)],
    ["Not scorable", number(before.num_unscored), number(after.num_unscored)],
  ];
  return [
    el("table", { class: "list" },
      el("thead", {}, el("tr", {}, ["Measure", "Before", "After"].map((name) => el("th", { scope: "col" }, name)))),
      el("tbody", {}, rows.map(([name, ...values]) => el("tr", {}, el("th", { scope: "row" }, name),
        values.map((value) => el("td", { class: "numeric" }, value)))))),
    el("dl", { class: "figures" },
      el("div", {}, el("dt", {}, "Rank agreement"), el("dd", {}, number(summary.rank_agreement),
        el("small", {}, "1: the same order, −1: the opposite"))),
      el("div", {}, el("dt", {}, "Advantages that change sign"), el("dd", {}, number(summary.num_sign_changes)))),
  ];
}
