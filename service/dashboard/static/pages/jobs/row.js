// One job in the list. Updates replace its cells but keep its tick box and its place.

import { can } from "../../access.js";
import { get, jobPath, metricsOf } from "../../api.js";
import { changeCell, changeOf } from "../../change.js";
import { sparkline } from "../../charts.js";
import { ago, button, counted, el, number } from "../../dom.js";
import { doubtIn } from "../../findings.js";
import { modelName } from "../../job_names.js";
import { doing, isOver, jobName, kindOf, labels, progressBar, statusBadge } from "../../job_parts.js";
import { inWords } from "../../labels.js";

const POINTS = 40;
const CELLS = ["name", "status", "progress", "curve", "held-out", "created small", "edit"];

// → {root, job, update(job), isChosen()}. The tick box calls `chosen()`, a metadata label `narrow(label)`, a tag
// `tagged(tag)`, the button `edit(job)`. `names`: job id → name.
export function jobRow(job, { signal, chosen, narrow, tagged, edit, names }) {
  const tick = el("input", { type: "checkbox", onchange: chosen });
  const cells = CELLS.map((kind) => el("td", { role: "cell", class: kind }));
  const [name, status, progress, curve, heldOut, created, action] = cells;
  const root = el("tr", { role: "row" }, el("td", { role: "cell", class: "tick" }, tick), cells);
  const row = { root, job, isChosen: () => tick.checked };
  const change = button("Edit", () => edit(row.job), { kind: "small quiet" });
  if (can.write) action.append(change);
  let drawn = null;
  let named = null;
  let findings = null; // until the diagnosis is read
  const judge = () => {
    const doubt = findings && doubtIn(findings);
    status.replaceChildren(statusBadge(row.job), ...notices(row.job, doubt ?? findings?.[0]));
    const isRise = changeOf(row.job)?.tone === "good";
    heldOut.replaceChildren(changeCell(row.job, findings !== null && !doubt), ...markOf(isRise && doubt));
  };
  let isRead = false;
  const readFindings = async () => {
    if (isRead) return; // the service reads all metrics for them
    isRead = true;
    findings = (await get(jobPath(row.job.id, "/diagnosis"), { signal }).catch(() => null))?.findings ?? null;
    judge();
  };
  row.update = (next) => {
    row.job = next;
    const title = JSON.stringify([next.name, next.tags, next.archived]);
    if (named !== title) {
      named = title; // otherwise the elements stay, and the keyboard's focus with them
      name.replaceChildren(...nameOf(next, { narrow, tagged, names }));
      tick.setAttribute("aria-label", `Select ${jobName(next)}`);
      change.setAttribute("aria-label", `Edit ${jobName(next)}`);
    }
    judge();
    if (next.status === "succeeded" && (next.attention || changeOf(next)?.tone === "good")) readFindings();
    progress.replaceChildren(progressBar(next), el("div", { class: "small faint steps" }, steps(next)));
    created.replaceChildren(ago(next.created_at));
    if (drawn === next.progress.step) return;
    drawn = next.progress.step;
    drawCurve(curve, next, signal);
  };
  row.update(job);
  return row;
}

// Why a rise may not be a success.
function markOf(doubt) {
  if (!doubt) return [];
  const cause = inWords(doubt.cause);
  return [el("div", { class: "small attention", title: cause }, "In doubt", el("span", { class: "unseen" }, `: ${cause}`))];
}

function nameOf(job, { narrow, tagged, names }) {
  const sweep = job.metadata?.sweep;
  return [
    el("a", { href: `#/jobs/${job.id}`, title: job.id }, jobName(job)),
    el("div", { class: "row about small" }, el("span", { class: "faint", title: job.model }, `${modelName(job.model, names)} · ${kindOf(job)}`),
      job.archived && el("span", { class: "tag" }, "archived"),
      sweep && el("a", { class: "sweep", href: `#/sweeps/${encodeURIComponent(sweep)}` }, `Sweep ${sweep}`),
      job.tags.map((tag) => button(tag, () => tagged(tag), { kind: "chip", title: "Filter by this tag" })),
      labels(job).map((label) => button(label, () => narrow(label), { kind: "chip", title: "Filter by this metadata" }))),
  ];
}

// What happens now, or why the result needs a look: the finding that explains it rather than a guard's warning.
function notices(job, finding) {
  const words = doing(job);
  const why = job.attention && (finding?.cause ?? job.attention);
  const tone = finding?.severity === "info" ? "faint" : "attention";
  return [
    words && el("div", { class: "small faint cut doing", title: words }, words),
    why && el("div", { class: `small why ${tone}`, title: why }, inWords(why)),
  ].filter(Boolean);
}

function steps(job) {
  const { step, total_steps: total } = job.progress;
  return isOver(job) && step === total ? counted(total, "step") : `${number(step)} of ${number(total)}`;
}

// If the request fails, the curve stays: the list itself reports the service's problem.
async function drawCurve(cell, job, signal) {
  if (!job.progress.step) return cell.replaceChildren(el("span", { class: "faint" }, "–"));
  const rows = await metricsOf(job.id, { names: ["reward", "loss"], points: POINTS, signal }).catch(() => null);
  if (!rows?.length) return;
  const metric = rows.some((row) => row.reward !== undefined) ? "reward" : "loss";
  const values = rows.map((row) => row[metric]).filter((value) => value !== undefined);
  if (!values.length) return;
  const [first, last] = [values[0], values.at(-1)].map((value) => number(value, 3));
  cell.replaceChildren(
    sparkline(values, `${metric} of ${jobName(job)}, from ${first} to ${last}`),
    el("div", { class: "small last" }, last, el("div", { class: "faint" }, metric)));
}
