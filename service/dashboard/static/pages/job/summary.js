// The top of a job's page: name, status, actions, progress, failure, warnings, evaluation.

import { jobPath, post } from "../../api.js";
import { ago, announce, button, confirmed, duration, el, failed, heading, number, section } from "../../dom.js";
import { isOver, jobName, jobPages, kindOf, labels, progressBar, statusBadge } from "../../job_parts.js";
import { cost } from "./cost.js";
import { evaluation } from "./evaluation.js";

const ACTIONS = {
  pause: { label: "Pause", done: "Pausing after the next checkpoint." },
  resume: { label: "Resume", done: "Resumed. The job is queued and continues from its last checkpoint." },
  cancel: {
    label: "Cancel job", kind: "danger", done: "Cancelling.",
    question: "Cancel this job?",
    detail: "The job stops now and cannot be resumed. Its last checkpoint stays available for download.",
    yes: "Cancel job", no: "Keep running",
  },
};
ACTIONS.pause = {
  ...ACTIONS.pause, question: "Pause this job?",
  detail: "The job saves a checkpoint and frees its worker. Resume continues from there.",
  yes: "Pause job", no: "Keep running", kind: "",
};

export class Summary {
  constructor(job, { changed, signal }) {
    this.id = job.id;
    this.changed = changed;
    this.signal = signal;
    this.status = el("div", { class: "row about" });
    this.buttons = el("div", { class: "actions" });
    this.problem = el("div");
    this.progress = el("div", { class: "panel progress" });
    this.failure = el("div");
    this.warnings = el("div");
    this.evaluation = el("div");
    this.rendered = new Map();
    this.cost = el("div");
    this.parts = [
      heading(jobName(job), {
        above: el("a", { class: "small back", href: "#/jobs" }, "Jobs"), below: this.status,
        actions: [el("a", { class: "button", href: `#/new?from=${job.id}` }, "Copy"), this.buttons],
      }),
      jobPages(job.id, "job"), this.problem, this.progress, this.failure,
    ];
    this.findings = [this.warnings, this.evaluation];
    this.update(job);
  }

  update(job) {
    this.job = job;
    this.status.replaceChildren(statusBadge(job), el("span", {}, `${job.model} · ${kindOf(job)}`),
      ...labels(job).map((label) => el("span", { class: "tag" }, label)),
      job.suffix ? el("code", { class: "faint" }, job.id) : "");
    this.progress.replaceChildren(...progressOf(job));
    this.refill(this.failure, job.failure, () => failureOf(job));
    this.refill(this.warnings, job.warnings, () => warningsOf(job));
    this.refill(this.evaluation, job.eval, () => evaluation(job));
    this.refill(this.cost, [job.estimate, job.actual], () => cost(job));
    this.offer(job);
  }

  // Rendered again only after a change, as the user may be reading or copying it.
  refill(box, data, make) {
    const rendered = JSON.stringify(data);
    if (this.rendered.get(box) === rendered) return;
    this.rendered.set(box, rendered);
    box.replaceChildren(...make());
    box.hidden = !box.hasChildNodes();
  }

  // Only the actions that the state allows; buttons are reused, so that a focused one keeps its focus.
  offer(job) {
    const wanted = isOver(job) || job.phase === "cancelling" ? [] : ["cancel"];
    if (job.status === "paused") wanted.unshift("resume");
    else if (wanted.length && job.phase !== "pausing") wanted.unshift("pause");
    const model = job.method.rule === "training_free" ? null : job.fine_tuned_model;
    const offered = [...wanted, model].join();
    if (this.offered === offered) return;
    this.offered = offered;
    const talk = model ? [el("a", { class: "button", href: `#/try?model=${encodeURIComponent(model)}` }, "Try it")] : [];
    this.buttons.replaceChildren(...talk, ...wanted.map((name) =>
      button(ACTIONS[name].label, (event) => this.act(name, event.target), { kind: ACTIONS[name].kind })));
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

function progressOf(job) {
  const { step, total_steps: total } = job.progress;
  const started = job.started_at && (job.finished_at ?? Date.now() / 1000) - job.started_at;
  const facts = [
    ["Step", el("span", {}, number(step), el("small", {}, `of ${number(total)}`))],
    job.status === "running" && ["Phase", job.phase],
    job.queue.reason && ["Queue", el("span", {}, job.queue.position ? `place ${number(job.queue.position)}` : "–",
      el("small", {}, job.queue.reason))],
    started && [isOver(job) ? "Duration" : "Elapsed", duration(started)],
    job.progress.seconds_remaining && ["Remaining", `about ${duration(job.progress.seconds_remaining)}`],
    job.attempt > 1 && ["Attempt", number(job.attempt)],
    ["Created", ago(job.created_at)],
  ].filter(Boolean);
  return [
    progressBar(job),
    el("dl", { class: "figures" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
  ];
}

function failureOf(job) {
  if (!job.failure) return [];
  const { code, message, hint, evidence } = job.failure;
  const lines = evidence.map((one) => (typeof one === "string" ? one : JSON.stringify(one)));
  return [section("Failure", el("div", { class: "note bad", role: "alert" },
    el("p", {}, el("strong", {}, message), " ", el("code", { class: "faint" }, code)),
    hint && el("p", {}, hint),
    lines.length ? el("pre", { class: "code" }, lines.join("\n")) : null))];
}

function warningsOf(job) {
  if (!job.warnings.length) return [];
  const many = job.warnings.length > 1 ? `${job.warnings.length} warnings` : "Warning";
  return [section(many, job.warnings.map((one) => el("div", { class: "note warn" },
    el("p", { class: "text" }, one.message ?? JSON.stringify(one)),
    one.code && el("p", { class: "small faint" }, el("code", {}, one.code)))))];
}
