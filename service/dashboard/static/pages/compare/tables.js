// The tables below the chart: each job's results, and the settings that differ.

import { changeOf } from "../../change.js";
import { button, duration, el, number, secondsRun, table } from "../../dom.js";
import { jobName, statusBadge } from "../../job_parts.js";
import { leaves, settingLabel, settingValue } from "../../labels.js";
import { ownMethod } from "../new/draft.js";

// → a table with a row per job; `drop(id)` removes one from the comparison.
export function outcomes(runs, drop) {
  const columns = ["Job", "Status", "Step", "Last reward or loss", "Held-out before", "Held-out last", "Held-out best", "Held-out change", "Duration", ""];
  return table("Results", columns, runs.map((run) => outcome(run, runs.length > 1 && drop)), "cards");
}

function outcome({ job, rows, color }, drop) {
  const { baseline, last: final, best } = job.eval;
  const last = rows.findLast((row) => row.reward !== undefined || row.loss !== undefined);
  const took = job.started_at && job.finished_at ? secondsRun(job) : null;
  const cells = [
    statusBadge(job), `${number(job.progress.step)} of ${number(job.progress.total_steps)}`,
    number(last?.reward ?? last?.loss), number(baseline?.reward ?? baseline?.loss), number(final?.reward ?? final?.loss),
    best ? `${number(best.reward ?? best.loss)} (step ${number(best.step)})` : "–", changed(job), duration(took),
    drop ? button("Remove", () => drop(job.id), { kind: "small quiet", "aria-label": `Remove ${jobName(job)}` }) : "",
  ];
  return el("tr", {},
    el("th", { scope: "row" }, el("span", { class: "swatch", style: { background: `var(--series-${color})` } }),
      el("a", { href: `#/jobs/${job.id}` }, jobName(job))),
    cells.map((cell) => el("td", {}, cell)));
}

// "+0.125 (0.031 to 0.219)", with its 95 percent interval.
function changed(job) {
  const change = changeOf(job);
  if (!change) return "–";
  const interval = change.interval ? ` (${change.interval})` : "";
  return el("span", { class: change.tone }, el("strong", {}, change.text), `${interval}${change.tone === "unclear" ? `, ${change.detail}` : ""}`);
}

// The settings that are not the same in all jobs.
export function differences(runs) {
  if (runs.length < 2) return el("p", { class: "faint" }, "There is only one job.");
  const settings = runs.map(({ job }) => flat(job));
  const names = [...new Set(settings.flatMap((one) => [...one.keys()]))].sort();
  const other = names.filter((name) => new Set(settings.map((one) => one.get(name))).size > 1);
  const same = `${names.length - other.length} other settings are the same.`;
  if (!other.length) return el("p", { class: "faint" }, `No setting differs: all ${names.length} are the same.`);
  const rows = (names) => names.map((name) => el("tr", {}, el("th", { scope: "row", title: name }, settingLabel(name)),
    settings.map((one) => el("td", { class: "value" }, shown(one.get(name))))));
  const columns = ["Setting", ...runs.map(({ job }) => jobName(job))];
  const equal = names.filter((name) => !other.includes(name));
  return [table("Differences", columns, rows(other), "cards"),
    el("details", {}, el("summary", {}, same), table("Equal settings", columns, rows(equal), "cards"))];
}

// A grader's code keeps its lines.
function shown(value) {
  if (value === undefined) return "–";
  return value.includes("\n") ? el("pre", { class: "code", tabindex: 0 }, value) : el("span", { class: "mono" }, value);
}

// `hyperparameters.lora.rank` → its value as text; nulls are left out.
function flat(job) {
  const method = ownMethod(job.method);
  const top = { model: job.model, training_file: job.training_file, validation_file: job.validation_file,
    validation_split: job.validation_split,
    seed: job.seed, resources: job.resources, method: method.type };
  return new Map([...leaves({ ...top, ...method[method.type] })].map(([path, value]) => [path, settingValue(value)]));
}
