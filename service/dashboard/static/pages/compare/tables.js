// The tables below the chart: each job's results, and the settings that differ.

import { button, duration, el, number, table } from "../../dom.js";
import { jobName, statusBadge } from "../../job_parts.js";
import { ownMethod } from "../new/draft.js";

// → a table with a row per job; `drop(id)` removes one from the comparison.
export function outcomes(runs, drop) {
  const columns = ["Job", "Status", "Step", "Last reward or loss", "Held-out before", "Held-out best", "Duration", ""];
  return table("Results", columns, runs.map((run) => outcome(run, runs.length > 1 && drop)));
}

function outcome({ job, rows, color }, drop) {
  const { baseline, best } = job.eval;
  const last = rows.findLast((row) => row.reward !== undefined || row.loss !== undefined);
  const took = job.started_at && job.finished_at ? job.finished_at - job.started_at : null;
  const cells = [
    statusBadge(job), `${number(job.progress.step)} of ${number(job.progress.total_steps)}`,
    number(last?.reward ?? last?.loss), number(baseline?.reward ?? baseline?.loss),
    best ? `${number(best.reward ?? best.loss)} (step ${number(best.step)})` : "–", duration(took),
    drop ? button("Remove", () => drop(job.id), { kind: "small quiet", "aria-label": `Remove ${jobName(job)}` }) : "",
  ];
  return el("tr", {},
    el("th", { scope: "row" }, el("span", { class: "swatch", style: { background: `var(--series-${color})` } }),
      el("a", { href: `#/jobs/${job.id}` }, jobName(job))),
    cells.map((cell) => el("td", {}, cell)));
}

// The settings that are not the same in all jobs.
export function differences(runs) {
  if (runs.length < 2) return el("p", { class: "faint" }, "There is only one job.");
  const settings = runs.map(({ job }) => flat(job));
  const names = [...new Set(settings.flatMap((one) => [...one.keys()]))].sort();
  const other = names.filter((name) => new Set(settings.map((one) => one.get(name))).size > 1);
  const same = `${names.length - other.length} other settings are the same.`;
  if (!other.length) return el("p", { class: "faint" }, `No setting differs: all ${names.length} are the same.`);
  const rows = other.map((name) => el("tr", {}, el("th", { scope: "row", class: "mono" }, name),
    settings.map((one) => el("td", { class: "mono value" }, one.get(name) ?? "–"))));
  return [table("Differences", ["Setting", ...runs.map(({ job }) => jobName(job))], rows),
    el("p", { class: "small faint" }, same)];
}

// `hyperparameters.lora.rank` → its value as text; nulls are left out.
function flat(job) {
  const method = ownMethod(job.method);
  const top = { model: job.model, training_file: job.training_file, validation_file: job.validation_file,
    validation_split: job.validation_split,
    seed: job.seed, resources: job.resources, method: method.type };
  const found = new Map();
  const walk = (value, path) => {
    if (value === null || value === undefined) return;
    if (typeof value !== "object" || Array.isArray(value)) return found.set(path, typeof value === "string" ? value : JSON.stringify(value));
    for (const [name, inner] of Object.entries(value)) walk(inner, path ? `${path}.${name}` : name);
  };
  walk({ ...top, ...method[method.type] }, "");
  return found;
}
