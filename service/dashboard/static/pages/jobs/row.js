// One job in the list. Updates replace its cells but keep its tick box and its place.

import { metricsOf } from "../../api.js";
import { sparkline } from "../../charts.js";
import { ago, button, el, number } from "../../dom.js";
import { doing, isOver, jobName, kindOf, labels, progressBar, statusBadge } from "../../job_parts.js";

const POINTS = 40;

// → {root, job, update(job), isChosen()}. The tick box calls `chosen()`, a metadata tag calls `narrow(label)`.
export function jobRow(job, { signal, chosen, narrow }) {
  const tick = el("input", { type: "checkbox", "aria-label": `Compare ${jobName(job)}`, onchange: chosen });
  const name = el("td", { role: "cell", class: "name" },
    el("a", { href: `#/jobs/${job.id}`, class: job.suffix ? "" : "id" }, jobName(job)),
    el("div", { class: "row about small" }, el("span", { class: "faint" }, `${job.model} · ${kindOf(job)}`),
      labels(job).map((label) =>
        button(label, () => narrow(label), { kind: "chip", title: "Filter by this metadata" }))));
  const [status, progress, curve] = ["status", "progress", "curve"].map((kind) => el("td", { role: "cell", class: kind }));
  const created = el("td", { role: "cell", class: "created small" });
  const root = el("tr", { role: "row" }, el("td", { role: "cell", class: "tick" }, tick), name, status, progress, curve, created);
  const row = { root, job, isChosen: () => tick.checked };
  let drawn = null;
  row.update = (next) => {
    row.job = next;
    status.replaceChildren(statusBadge(next), el("div", { class: "small faint cut doing" }, doing(next)));
    progress.replaceChildren(progressBar(next), el("div", { class: "small faint steps" }, steps(next)));
    created.replaceChildren(ago(next.created_at));
    if (drawn === next.progress.step) return;
    drawn = next.progress.step;
    drawCurve(curve, next, signal);
  };
  row.update(job);
  return row;
}

function steps(job) {
  const { step, total_steps: total } = job.progress;
  return isOver(job) && step === total ? `${number(total)} step${total === 1 ? "" : "s"}` : `${number(step)} of ${number(total)}`;
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
