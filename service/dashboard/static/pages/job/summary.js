// The top of a job's page: name, actions, results, what to do next, and why it failed.

import { can } from "../../access.js";
import { jobPath, post } from "../../api.js";
import { announce, button, confirmed, el, failed, heading } from "../../dom.js";
import { isOver, jobName, kindOf, labels } from "../../job_parts.js";
import { editJob } from "./edit.js";
import { Lineage } from "./lineage.js";
import { nextStep } from "./next.js";
import { shareJob } from "./share.js";
import { strip } from "./strip.js";

const ACTIONS = {
  pause: {
    label: "Pause", done: "Pausing after the next checkpoint.", kind: "", question: "Pause this job?",
    detail: "The job saves a checkpoint and frees its worker. Resume continues from there.",
    yes: "Pause job", no: "Keep running",
  },
  resume: { label: "Resume", kind: "primary", done: "Resumed. The job is queued and continues from its last checkpoint." },
  cancel: {
    label: "Cancel job", kind: "danger", done: "Cancelling.", question: "Cancel this job?",
    detail: "The job stops now and cannot be resumed. Its last checkpoint stays available for download.",
    yes: "Cancel job", no: "Keep running",
  },
};

export class Summary {
  constructor(job, { changed, signal }) {
    this.id = job.id;
    this.changed = changed;
    this.signal = signal;
    this.rows = [];
    this.findings = {};
    this.lineage = new Lineage(job, signal);
    this.tags = el("span", { class: "row" });
    this.about = el("div", { class: "row about" }, el("span", {}, `${kindOf(job)} from `, this.lineage.root),
      this.tags, el("code", { class: "faint" }, job.id));
    this.notes = el("p", { class: "text notes" });
    this.buttons = el("div", { class: "actions" });
    this.problem = el("div");
    this.results = el("section", { class: "results", "aria-label": "Results" });
    const edit = () => editJob(this.job, { changed: (next) => this.changed(next) });
    this.heading = heading(jobName(job), {
      above: can.browse && el("a", { class: "small back", href: "#/jobs" }, "Jobs"), below: [this.about, this.notes],
      actions: [can.write && [button("Edit", edit), button("Share", () => shareJob(this.job, signal)),
        el("a", { class: "button", href: `#/new?from=${job.id}` }, "Run again…")], this.buttons],
    });
    this.parts = [this.heading, this.problem, this.results];
    this.update(job);
  }

  update(job, { rows = this.rows, findings = this.findings } = {}) {
    Object.assign(this, { job, rows, findings });
    this.describe(job);
    this.results.replaceChildren(strip(job, rows, !findings.main), ...(can.browse ? [nextStep(job, findings, this.signal)] : []));
    this.offer(job);
  }

  describe(job) {
    this.heading.querySelector("h1").textContent = jobName(job);
    this.tags.replaceChildren(...[...job.tags, ...labels(job)].map((label) => el("span", { class: "tag" }, label)));
    this.notes.textContent = job.notes ?? "";
    this.notes.hidden = !job.notes;
  }

  // Only the actions that the state allows; buttons are reused, so that a focused one keeps its focus.
  offer(job) {
    const wanted = !can.write || isOver(job) || job.phase === "cancelling" ? [] : ["cancel"];
    if (can.write && job.status === "paused") wanted.unshift("resume");
    else if (wanted.length && job.phase !== "pausing") wanted.unshift("pause");
    const model = job.method.rule === "training_free" || !can.browse ? null : job.fine_tuned_model;
    const offered = [...wanted, model].join();
    if (this.offered === offered) return;
    this.offered = offered;
    const tryIt = model ? [el("a", { class: "button primary", href: `#/try?model=${encodeURIComponent(model)}` }, "Try it")] : [];
    this.buttons.replaceChildren(...wanted.map((name) =>
      button(ACTIONS[name].label, (event) => this.act(name, event.target), { kind: ACTIONS[name].kind })), ...tryIt);
  }

  async act(name, pressed) {
    const action = ACTIONS[name];
    if (action.question && !(await confirmed(action.question, action))) return;
    pressed.disabled = true;
    this.problem.replaceChildren();
    try {
      this.changed(await post(jobPath(this.id, `/${name}`), undefined, { signal: this.signal }));
      announce(action.done);
    } catch (error) {
      if (!this.signal.aborted) failed(this.problem, error);
    }
    pressed.disabled = false;
  }
}
