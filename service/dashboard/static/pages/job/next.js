// The meaning of the results and the next action: one sentence and its links. Boundary: a job and its findings in, elements
// out.

import { can } from "../../access.js";
import { el, number } from "../../dom.js";
import { hasInterval } from "./strip.js";

// findings: {count, main}: the number of those that are not errors, and the cause that explains the run, if one does.
export function nextStep(job, { count = 0, main } = {}) {
  const [text, ...links] = adviceFor(job, count, linksOf(job, count));
  const isExplained = main && !["failed", "cancelled"].includes(job.status);
  return el("p", { class: "next" }, el("strong", {}, isExplained ? main : text), links.filter(Boolean));
}

function linksOf(job, findings) {
  const link = (label, href) => el("a", { href }, label);
  return {
    checkpoints: link(job.status === "succeeded" ? "Download" : "Checkpoints", `#/jobs/${job.id}/checkpoints`),
    findings: findings > 0 && el("a", { href: `#/jobs/${job.id}`, onclick: showFindings }, findings === 1 ? "Read the finding" : `Read ${number(findings)} findings`),
    rollouts: job.method.type === "supervised" ? null : link("Read rollouts", `#/jobs/${job.id}/rollouts`),
    edit: can.write && link("Run again with changes", `#/new?from=${job.id}`),
    try: job.fine_tuned_model && job.method.rule !== "training_free" && link("Try the model", `#/try?model=${encodeURIComponent(job.fine_tuned_model)}`),
  };
}

// The address stays, so that the page is not loaded again.
function showFindings(event) {
  event.preventDefault();
  document.getElementById("findings").scrollIntoView();
}

function adviceFor(job, findings, { checkpoints, rollouts, edit, findings: why, try: talk }) {
  switch (job.status) {
    case "failed": return ["Fix the cause below, then run again.", edit];
    case "cancelled": return [`Cancelled at step ${number(job.progress.step, 7)}. Saved checkpoints stay available.`, checkpoints, edit];
    case "paused": return [`Paused at step ${number(job.progress.step, 7)}. Resume continues from the last checkpoint.`, why, checkpoints];
    case "succeeded": return finished(job, { checkpoints, rollouts, edit, why, talk });
    default: return running(job, why, rollouts);
  }
}

function finished(job, { checkpoints, rollouts, edit, why, talk }) {
  switch (verdictOf(job)) {
    case "better": return [`Better on held-out rows.${why ? " Read the findings and some rollouts before you trust it." : " Try the model, or download it."}`, why, talk, checkpoints, rollouts];
    case "worse": return ["Worse on held-out rows than before training.", why, edit, checkpoints];
    case "same": return [`No significant change on held-out rows.${why ? "" : " Train longer, or with more held-out rows."}`, why, edit, rollouts];
    default: return [`Finished. Without held-out rows, ${why ? "read the findings and " : ""}try the model beside the one it was trained from.`, why, talk, checkpoints];
  }
}

function running(job, why, rollouts) {
  if (!job.progress.step) return ["Results appear with the first step."];
  switch (verdictOf(job)) {
    case "better": return ["Learning: better on held-out rows so far.", why, rollouts];
    case "worse": return ["Worse on held-out rows so far. Read some rollouts before it continues.", why, rollouts];
    case "same": return ["No significant change on held-out rows so far.", why, rollouts];
    default: return [job.eval.baseline ? "The first comparison comes with the next evaluation." : "Training.", why, rollouts];
  }
}

function verdictOf(job) {
  const verdict = job.eval.verdict;
  if (!verdict || !hasInterval(verdict)) return null;
  return verdict.low > 0 ? "better" : verdict.high < 0 ? "worse" : "same";
}
