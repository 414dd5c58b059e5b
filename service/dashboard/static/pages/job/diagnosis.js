// Why a job failed or learns poorly, by the service's rules. Errors are shown in full with the failure; other findings
// and warnings are one line each, with their evidence and a retry on a click.

import { can } from "../../access.js";
import { get, jobPath, post } from "../../api.js";
import { announce, button, confirmed, el, failed, isPresent, number, percent, section } from "../../dom.js";
import { doubtIn } from "../../findings.js";
import { inWords, metricLabel, settingLabel, settingValue } from "../../labels.js";
import { formatOf } from "../../metric_names.js";

const KINDS = { error: "bad", warning: "warn", info: "" }; // the most severe first

export class Diagnosis {
  // `counted({count, main})`: called with the number of findings that are no errors, and the cause of the first warning.
  constructor(id, signal, counted) {
    this.id = id;
    this.signal = signal;
    this.counted = counted;
    this.problem = el("div");
    this.errors = el("div");
    this.failure = section("Failure", this.errors);
    this.list = el("div", { class: "findings" });
    this.root = section("Findings", this.problem, this.list);
    this.root.id = "findings";
    this.failure.hidden = this.root.hidden = true;
    this.readAt = 0;
  }

  // Rendered again only if the findings differ, as the user may be reading one.
  async load(job) {
    this.readAt = Date.now();
    this.show(job, this.findings ?? []);
    this.findings = (await get(jobPath(this.id, "/diagnosis"), { signal: this.signal })).findings;
    this.show(job, this.findings);
  }

  show(job, findings) {
    const drawn = JSON.stringify([findings, job.failure, job.warnings]);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const errors = findings.filter((one) => one.severity === "error");
    const explained = findings.filter((one) => one.severity !== "error")
      .sort((a, b) => Object.keys(KINDS).indexOf(a.severity) - Object.keys(KINDS).indexOf(b.severity));
    const others = [...explained, ...warningsOf(job)]; // a finding explains the run, a warning of the request does not
    this.failure.hidden = !job.failure && !errors.length;
    this.errors.replaceChildren(this.failed(job.failure, errors));
    const open = new Set([...this.list.querySelectorAll("details[open]")].map((one) => one.dataset.code));
    this.list.replaceChildren(...others.map((one) => this.line(one, open.has(one.code))));
    this.root.hidden = !others.length;
    const main = doubtIn(explained);
    this.counted({ count: others.length, main: main && inWords(main.cause) });
  }

  // The failure as it was reported, and its findings without what the report says already.
  failed(failure, errors) {
    const shown = [failure?.hint, ...(failure?.evidence ?? [])];
    return el("div", { class: "note bad", role: "alert" }, failure && failureReport(failure), errors.map((one) => {
      const evidence = one.evidence.filter((line) => !shown.includes(line));
      return el("article", {}, el("p", {}, el("strong", {}, inWords(one.cause))),
        this.details({ ...one, evidence, advice: shown.includes(one.advice) ? null : one.advice }));
    }));
  }

  line(one, isOpen) {
    return el("details", { class: `finding ${KINDS[one.severity]}`, open: isOpen, "data-code": one.code },
      el("summary", {}, el("strong", {}, inWords(one.cause)), el("span", { class: "compared" }, comparedIn(one)), el("span", { class: "times" }, times(one))),
      el("div", { class: "details" }, this.details(one)));
  }

  details(one) {
    return [
      one.evidence.length > 0 && el("ul", { class: "small" }, one.evidence.map((line) => el("li", { class: "text" }, inWords(line)))),
      one.advice && el("p", {}, inWords(one.advice)),
      isPresent(one.suggested) && el("p", { class: "small" }, el("span", { title: one.field }, settingLabel(one.field)), change(one)),
      el("div", { class: "row" },
        can.write && one.patch && button(one.field ? "Run again with this change" : "Run again", (event) => this.clone(one, event.target), { kind: "small" }),
        this.form(one),
        can.browse && one.field?.endsWith(".grader") && el("a", { class: "small", href: `#/grader?job=${this.id}` }, "Open in the grader bench")),
    ];
  }

  form({ field, patch }) {
    if (!can.write || (!field && !patch)) return null;
    const query = new URLSearchParams({ from: this.id, ...(field && (patch ? { patch: JSON.stringify(patch) } : { field })) });
    return el("a", { class: "small", href: `#/new?${query}` }, query.has("patch") ? "Change more in the form" : `Edit ${placeOf(field)} in the form`);
  }

  async clone(one, pressed) {
    const other = Object.keys(one.patch).length ? "this change, and otherwise the same request and seed" : "the same request and seed";
    const detail = `Creates a new job with ${other}. This job does not change.`;
    if (!(await confirmed("Run this job again?", { detail, yes: "Run again", no: "Not now", kind: "primary" }))) return;
    pressed.disabled = true;
    this.problem.replaceChildren();
    try {
      const job = await post(jobPath(this.id, "/clone"), one.patch, { signal: this.signal });
      announce("The new job is queued");
      location.hash = `#/jobs/${job.id}`;
    } catch (error) {
      if (!this.signal.aborted) failed(this.problem, error);
    }
    pressed.disabled = false;
  }
}

// "method.reinforcement.grader" → "the grader"
const placeOf = (field) => {
  const label = settingLabel(field);
  return `the ${/[A-Z]/.test(label[1]) ? label : label[0].toLowerCase() + label.slice(1)}`;
};
const change = ({ current, suggested }) => ` ${settingValue(current)} → ${settingValue(suggested)}`;

// "held-out 0.862 · training 0.79 at step 40", "entropy, steps 1–20: 0.125"
const comparedIn = ({ compared = [] }) => compared.map(({ label, value, step }, at) => {
  const isShare = isShareNamed(label === "limit" ? compared[0].label : label);
  const hasSteps = /, steps? [\d–]+$/.test(label);
  const atStep = !hasSteps && isPresent(step) && ` at step ${number(step, 7)}`;
  return [at > 0 && " · ", `${labelled(label)}${hasSteps ? ": " : " "}`, el("b", {}, isShare ? percent(value) : number(value, 3)), atStep];
});

const isShareNamed = (label) => /^(failed sessions|rows with the same answer)/.test(label) || formatOf(label.split(",")[0]) === percent;
const labelled = (text) => inWords(text.replace(/^(reward|entropy|kl)\b/, metricLabel));

function times({ count, first_step: first, last_step: last, cause }) {
  if (count === 1 && /\bsteps? \d/.test(cause)) return "";
  const at = isPresent(last) ? `at step ${number(last, 7)}` : "";
  if (count > 1) return [`${number(count)} times`, at && `last ${at}`].filter(Boolean).join(", ");
  return at || (first ? `since step ${number(first, 7)}` : "");
}

// The job's other warnings as findings, one for each code; the diagnosis has those of the guards.
function warningsOf(job) {
  const found = new Map();
  for (const warning of job.warnings) {
    const code = warning.code ?? "warning";
    if (code.startsWith("guard_")) continue;
    const same = found.get(code) ?? { code, severity: "warning", count: 0, evidence: [], cause: "" };
    same.count += 1;
    same.last_step = warning.step ?? same.last_step;
    same.cause = warning.message ?? JSON.stringify(warning);
    same.evidence = [...new Set([...same.evidence, same.cause])];
    found.set(code, same);
  }
  for (const one of found.values()) if (one.evidence.length === 1) one.evidence = [];
  return [...found.values()];
}

function failureReport({ code, message, hint, evidence }) {
  const lines = evidence.map((one) => (typeof one === "string" ? one : JSON.stringify(one)));
  return [
    el("p", {}, el("strong", {}, inWords(message)), " ", el("code", {}, code)),
    hint && el("p", {}, inWords(hint)),
    lines.length > 0 && el("pre", { class: "code", tabindex: 0 }, lines.join("\n")),
  ];
}
