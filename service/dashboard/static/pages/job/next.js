// The meaning of the results and the next action: a sentence or two, and links. Boundary: a job and its findings in,
// elements out.

import { can } from "../../access.js";
import { decimals, el, number } from "../../dom.js";
import { downloadButton } from "../../download_button.js";
import { downloads } from "./downloads.js";
import { hasInterval } from "./strip.js";

const BETTER = "Better on held-out rows.";
const WORSE = "Worse on held-out rows than before training.";

// findings: {count, main}: the number of those that are not errors, and the cause that puts the result in doubt, if any.
export function nextStep(job, { count = 0, main } = {}, signal) {
  const [text, ...links] = adviceFor(job, Boolean(main), linksOf(job, count, signal));
  return el("p", { class: `next ${toneOf(job, main)}` }, el("strong", {}, headline(job, text, main)), links.filter(Boolean));
}

// Green only for a result that nothing puts in doubt.
function toneOf(job, main) {
  if (job.status === "failed") return "";
  const verdict = verdictOf(job);
  if (verdict === "worse") return "bad";
  return main ? "warn" : verdict === "better" ? "good" : "";
}

// A cause takes the place of the result that it explains, but never hides that the model got worse.
function headline(job, text, main) {
  if (!main || ["failed", "cancelled"].includes(job.status)) return text;
  return verdictOf(job) === "worse" ? `${WORSE} ${main}` : main;
}

function linksOf(job, count, signal) {
  const link = (label, href) => el("a", { href }, label);
  const checkpoints = link("Checkpoints", `#/jobs/${job.id}/checkpoints`);
  const weights = job.status === "succeeded" && downloads(job).find((one) => one.isWeights);
  return {
    checkpoints,
    download: weights ? downloadButton(`Download ${weights.label.toLowerCase()}`, weights.path, signal) : checkpoints,
    findings: count > 0 && el("a", { href: `#/jobs/${job.id}`, onclick: showFindings }, count === 1 ? "Read the finding" : `Read ${number(count)} findings`),
    rollouts: job.method.type === "supervised" ? null : link("Read rollouts", `#/jobs/${job.id}/rollouts`),
    reinforce: can.write && job.fine_tuned_model && link("Train it with GRPO", `#/new?after=${job.id}`),
    edit: can.write && link("Run again with changes", `#/new?from=${job.id}`),
    tryIt: job.fine_tuned_model && job.method.rule !== "training_free" && link("Try the model", `#/try?model=${encodeURIComponent(job.fine_tuned_model)}`),
  };
}

// Opens the first finding. The address stays, so that the page is not loaded again.
function showFindings(event) {
  event.preventDefault();
  const findings = document.getElementById("findings");
  findings.scrollIntoView();
  const first = findings.querySelector("details");
  first.open = true;
  first.querySelector("summary").focus({ preventScroll: true });
}

function adviceFor(job, isDoubted, links) {
  const { checkpoints, rollouts, edit, findings } = links;
  switch (job.status) {
    case "failed": return ["Fix the cause below, then run again.", edit];
    case "cancelled": return [`Cancelled at step ${number(job.progress.step, 7)}. Saved checkpoints stay available.`, checkpoints, edit];
    case "paused": return [`Paused at step ${number(job.progress.step, 7)}. Resume continues from the last checkpoint.`, findings, checkpoints];
    case "succeeded": return finished(job, isDoubted, links);
    default: return running(job, findings, rollouts);
  }
}

function finished(job, isDoubted, { checkpoints, download, rollouts, edit, reinforce, findings, tryIt }) {
  const loss = lossOf(job);
  if (loss) return loss.fell ? [`${loss.text} GRPO can start from this model.`, findings, reinforce, tryIt, download] : [loss.text, findings, edit, checkpoints];
  switch (verdictOf(job)) {
    case "better": return isDoubted ? [BETTER, findings, rollouts, edit, tryIt, download] : [`${BETTER} Try the model, or download it.`, tryIt, download, findings, rollouts];
    case "worse": return [`${WORSE} Lower the learning rate, or use a checkpoint from before the fall.`, findings, edit, checkpoints];
    case "same": return [`No significant change on held-out rows.${findings ? "" : " Train longer, or with more held-out rows."}`, findings, edit, rollouts];
    default: return [`Finished. Without ${job.eval.baseline ? "a verdict on " : ""}held-out rows, ${findings ? "read the findings and " : ""}try the model beside the one it was trained from.`, findings, tryIt, download];
  }
}

function running(job, findings, rollouts) {
  if (!job.progress.step) return ["Results appear with the first step."];
  const loss = lossOf(job);
  if (loss) return [loss.text, findings];
  switch (verdictOf(job)) {
    case "better": return ["Learning: better on held-out rows so far.", findings, rollouts];
    case "worse": return ["Worse on held-out rows so far. Read some rollouts before it continues.", findings, rollouts];
    case "same": return ["No significant change on held-out rows so far.", findings, rollouts];
    default: return [job.eval.baseline ? "The first comparison comes with the next evaluation." : "Training.", findings, rollouts];
  }
}

function verdictOf(job) {
  const verdict = job.eval.verdict;
  if (!verdict || !hasInterval(verdict)) return null;
  return verdict.low > 0 ? "better" : verdict.high < 0 ? "worse" : "same";
}

// What the held-out loss did; null without two evaluations of it.
function lossOf({ eval: { baseline, last, best } }) {
  if (!(last?.step > 0) || ![baseline?.loss, last.loss].every(Number.isFinite)) return null;
  const ends = `from ${decimals(baseline.loss)} to ${decimals(last.loss)}`;
  if (last.loss >= baseline.loss) return { fell: false, text: `The held-out loss did not fall: ${ends}.` };
  const isPast = best?.step > 0 && decimals(best.loss) !== decimals(last.loss);
  const lowest = isPast ? `, lowest at step ${number(best.step, 7)}` : "";
  return { fell: true, text: `The held-out loss fell ${ends}${lowest}.` };
}
