// The findings of a check, an estimate and a probe, as elements; a probe's advice can be applied to the draft.

import { PROBES } from "../../api.js";
import { ago, button, bytes, counted, el, number, percent } from "../../dom.js";
import { logButton } from "../../download_button.js";
import { between, expectedTime } from "../job/cost.js";
import { modelName } from "../../job_names.js";
import { inWords, settingLabel } from "../../labels.js";
import { methodOf } from "./draft.js";
import { idOf, labelOf } from "./fields.js";
import { isTruncated } from "../rollouts/ends.js";

const TONES = { yes: "good", maybe: "warn", no: "bad" };

const SHOWN = 10;

// `problems`: [{param, message, field}], `field` is the form's own; `go` focuses it. A problem that many rows
// share is shown once.
export function showProblems(problems, go) {
  const groups = kindsOf(problems);
  return el("div", { class: "note bad", role: "alert" },
    el("h3", {}, `${counted(groups.length, "problem")} to fix`),
    el("ul", { class: "problems" }, groups.slice(0, SHOWN).map(([one, ...others]) => el("li", {},
      one.field ? fieldLink(one.field, placeOf(one), go) : one.param && el("span", { title: one.param }, settingLabel(one.param)), " ", inWords(textOf(one)),
      count([one, ...others]) > 1 && ` (and ${number(count([one, ...others]) - 1)} similar)`))),
    groups.length > SHOWN && el("p", { class: "small" }, `And ${groups.length - SHOWN} more.`));
}

const textOf = (one) => one.message.replace(`${one.param}: `, "");

// Lists of the problems of a field that differ only in their numbers.
function kindsOf(problems) {
  const kind = (one) => textOf(one).replace(/\b\d[\d,.]*\b/g, "#");
  return [...Map.groupBy(problems, (one) => `${one.field} ${kind(one)}`).values()];
}

// The number of all problems of a kind, of which the service lists the first hundred.
const count = (alike) => Math.max(alike[0].alike ?? 0, alike.length);

// The number of all problems that `problems`, the listed ones, stand for.
export const countOf = (problems) => kindsOf(problems).reduce((sum, alike) => sum + count(alike), 0);

// The label of the problem's field, with what its path has beyond it: "Training file, row 17 › messages".
function placeOf({ field, param }) {
  const label = labelOf(field);
  if (!param.startsWith(field)) return `${label} (${settingLabel(param)})`;
  const rest = param.slice(field.length);
  if (rest.startsWith("[")) return settingLabel(param);
  return rest ? `${label} › ${rest.slice(1)}` : label;
}

function fieldLink(field, text, go) {
  return el("a", { href: "#", onclick: (event) => { event.preventDefault(); go(field); } }, text);
}

export function showCheck(report) {
  const rows = counted(report.rows.training, "row");
  const held = report.rows.validation ? `, ${number(report.rows.validation)} held out` : "";
  const isClean = !report.warnings.length;
  const advice = isClean ? "No problems found." : "The job would be accepted. Review first:";
  return [
    el("div", { class: `note ${isClean ? "good" : ""}`, role: "status" },
      el("h3", {}, isClean ? "Ready to start" : "Ready, with warnings"), el("p", {}, `${rows}${held}, ${counted(report.total_steps, "step")}. ${advice}`)),
    report.warnings.map((warning) => el("div", { class: "note warn" }, el("p", {}, inWords(warning.message)))),
    showEstimate(report.estimate),
  ];
}

function showEstimate(found) {
  const facts = [
    ["Time", expectedTime(found)],
    ["Memory", between(found.peak_memory_bytes, bytes)],
    found.completions && ["Completions", number(found.completions)],
    found.completions && ["Sampled tokens", between(found.sampled_tokens, number)],
    found.trained_tokens && ["Trained tokens", between(found.trained_tokens, number)],
  ].filter(Boolean);
  return el("div", { class: "stack" },
    el("h3", {}, "Estimate"),
    el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    el("ul", { class: "problems hint" }, found.notes.map((note) => el("li", {}, inWords(note)))));
}

export function showProbing(probe) {
  const { step, total_steps: total } = probe.progress;
  const doing = probe.queue.reason ?? (probe.phase === "probing" ? "sampling" : probe.phase);
  return el("div", { class: "note", role: "status" },
    el("p", {}, `The probe is ${doing}${total ? `: ${step} of ${total} batches` : ""}…`),
    el("div", { class: "bar" }, el("i", { style: { width: `${total ? (100 * step) / total : 0}%` } })));
}

// `draft`: takes the advice.
export function showProbe(probe, go, draft, signal) {
  const { result } = probe;
  if (!result) {
    const why = probe.failure ? inWords(`${probe.failure.message} ${probe.failure.hint}`) : "Cancelled.";
    return el("div", { class: "note bad", role: "alert" }, el("h3", {}, "No probe result"), el("p", {}, why),
      probe.failure && logButton(`${PROBES}/${probe.id}`, signal));
  }
  const figures = [
    [`right at temperature ${number(result.temperature)}`, percent(result.pass_rate)],
    result.greedy_pass_rate !== null && ["right, greedy", percent(result.greedy_pass_rate)], ["groups with signal", percent(result.signal_share)],
    ["truncated", percent(result.truncated_share)], ["mean length", `${number(result.mean_completion_tokens, 3)} tokens`],
    ["speed", `${number(result.tokens_per_second, 3)} tokens/s`],
  ].filter(Boolean);
  return el("div", { class: "stack" },
    el("p", { class: "small faint" }, `${modelName(probe.model)}, ${counted(result.prompts, "prompt")}, `, ago(probe.created_at)),
    el("div", { class: `note ${TONES[result.can_learn]}`, role: "status" }, el("h3", {}, "Can GRPO learn here?"), el("p", {}, inWords(result.sentence)),
      result.advice.length > 0 && el("ul", { class: "problems" }, result.advice.map((one) => el("li", {},
        fieldLink(one.param, labelOf(one.param), go), ": ", inWords(one.message))))),
    adviceButton(result.advice, draft),
    el("dl", { class: "facts" }, figures.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    el("details", {}, el("summary", {}, `Samples (${probe.groups.length} of ${result.prompts} prompts)`), probe.groups.map(showGroup)));
}

function showGroup(group) {
  return el("div", { class: "sampled" },
    el("p", { class: "text cut-lines small" }, group.prompt),
    el("ul", {}, group.completions.map((one) => el("li", {},
      el("span", { class: "numeric" }, one.reward === null ? "error" : number(one.reward, 2)),
      el("span", { class: "text cut-lines" }, one.text || "(empty)"),
      isTruncated(one) && el("span", { class: "tag" }, "truncated")))));
}

// ---- a probe's advice as changes of the draft

// The button that takes the values of `advice` into the draft and reports the changed fields; null if there are none.
function adviceButton(advice, draft) {
  const settable = advice.filter((one) => one.value !== null);
  if (!settable.length) return null;
  const report = el("p", { class: "small", role: "status" });
  const take = button("Apply the advice", () => {
    const changes = settable.map((one) => changed(draft, one));
    report.textContent = `Changed: ${changes.join("; ")}.`;
    take.disabled = true;
  });
  return el("div", { class: "stack" }, el("div", { class: "row" }, take), report);
}

// → "Completions per prompt 8 → 16"
function changed(draft, { param, value }) {
  const before = draft.get(param) ?? "default";
  if (param === "method.type") draft.set("method", methodOf(value));
  else draft.set(param, value);
  const folded = document.getElementById(idOf(param))?.closest("details");
  if (folded) folded.open = true;
  return `${labelOf(param)} ${before} → ${value}`;
}
