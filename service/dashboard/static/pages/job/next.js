// The meaning of the results and the next action: one sentence and its links. Boundary: a job and its findings in, elements out.

import { can } from "../../access.js";
import { el, number } from "../../dom.js";
import { hasInterval } from "./strip.js";

// `findings`: the number of those that are not errors.
export function nextStep(job, findings = 0) {
  const [text, ...links] = adviceFor(job, findings, linksOf(job));
  return el("p", { class: "next" }, el("strong", {}, text), links.filter(Boolean));
}

function linksOf(job) {
  const link = (label, href) => el("a", { href }, label);
  return {
    checkpoints: link("Checkpoints", `#/jobs/${job.id}/checkpoints`),
    rollouts: job.method.type === "supervised" ? null : link("Read rollouts", `#/jobs/${job.id}/rollouts`),
    edit: can.write && link("Run again with changes", `#/new?from=${job.id}`),
    try: job.fine_tuned_model && job.method.rule !== "training_free" && link("Try the model", `#/try?model=${encodeURIComponent(job.fine_tuned_model)}`),
  };
}

function adviceFor(job, findings, { checkpoints, rollouts, edit, try: talk }) {
  const read = findings ? ` ${findings === 1 ? "A finding explains" : "The findings explain"} why.` : "";
  switch (job.status) {
    case "failed": return ["Fix the cause below, then run again.", edit];
    case "cancelled": return [`Cancelled at step ${number(job.progress.step, 7)}. Saved checkpoints stay available.`, checkpoints, edit];
    case "paused": return [`Paused at step ${number(job.progress.step, 7)}. Resume continues from the last checkpoint.${read && " Read the findings first."}`, checkpoints];
    case "succeeded": return finished(job, findings, read, { checkpoints, rollouts, edit, talk });
    default: return running(job, findings, rollouts);
  }
}

function finished(job, findings, read, { checkpoints, rollouts, edit, talk }) {
  switch (verdictOf(job)) {
    case "better": return [`Better on held-out rows.${findings ? " Read the findings and some rollouts before you trust it." : " Try the model, or download it."}`, talk, checkpoints, rollouts];
    case "worse": return [`Worse on held-out rows than before training.${read}`, edit, checkpoints];
    case "same": return [`No significant change on held-out rows.${read || " Train longer, or with more held-out rows."}`, edit, rollouts];
    default: return ["Finished. Without held-out rows, try the model beside the one it was trained from.", talk, checkpoints];
  }
}

function running(job, findings, rollouts) {
  if (!job.progress.step) return ["Results appear with the first step."];
  const read = findings ? ` ${number(findings)} ${findings === 1 ? "finding" : "findings"} below.` : "";
  switch (verdictOf(job)) {
    case "better": return [`Learning: better on held-out rows so far.${read}`, rollouts];
    case "worse": return [`Worse on held-out rows so far.${read} Read some rollouts before it continues.`, rollouts];
    case "same": return [`No significant change on held-out rows so far.${read}`, rollouts];
    default: return [job.eval.baseline ? `The first comparison comes with the next evaluation.${read}` : `Training.${read}`, rollouts];
  }
}

function verdictOf(job) {
  const verdict = job.eval.verdict;
  if (!verdict || !hasInterval(verdict)) return null;
  return verdict.low > 0 ? "better" : verdict.high < 0 ? "worse" : "same";
}
