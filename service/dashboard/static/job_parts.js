// What several pages show of a job: its name, status, progress, kind, and the links between its pages.

import { can, placeOf } from "./access.js";
import { duration, el, moment } from "./dom.js";
import { modelName } from "./job_names.js";

const OVER = new Set(["succeeded", "failed", "cancelled"]);

export const isOver = (job) => OVER.has(job.status);
export const givenName = (job) => job.name ?? job.suffix ?? null;
// Without a name: "tiny · 26 Nov 2026, 21:50:12".
export const jobName = (job) => givenName(job) ?? `${modelName(job.model)} · ${moment(job.created_at)}`;
export const kindOf = (job) => KINDS[job.method.type] ?? job.method.type;
const KINDS = { reinforcement: "GRPO", supervised: "Supervised", training_free: "Training-free" };

// The tabs of one job, in order; `rollouts` has a page of its own, the others are `pages/job/<tab>.js` or part of
// `pages/job/page.js`.
const JOB_TABS = {
  metrics: "Metrics",
  rollouts: "Rollouts",
  checkpoints: "Checkpoints",
  configuration: "Configuration",
  logs: "Logs",
  system: "System",
  history: "History",
};

// A shared run is shown without the machine that ran it; a supervised job samples nothing.
export function isTab(tab, { method }) {
  if (!can.browse && ["logs", "system"].includes(tab)) return false;
  return tab in JOB_TABS && (tab !== "rollouts" || method.type !== "supervised");
}

export function jobPages(job, here) {
  const shown = Object.entries(JOB_TABS).filter(([tab]) => isTab(tab, job));
  return el("nav", { class: "tabs", "aria-label": "Pages of this job" }, shown.map(([tab, label]) =>
    el("a", { href: placeOf(job.id, tab), "data-tab": tab, "aria-current": tab === here && "page" }, label)));
}

// Stopping jobs have the status `running` too; the phase distinguishes them.
export function statusBadge(job) {
  const shown = job.phase === "cancelling" || job.phase === "pausing" ? "cancelling" : job.status;
  const words = shown === "cancelling" ? job.phase : job.status.replace("_", " ");
  return el("span", { class: `badge ${shown}` }, words);
}

// One line on what is happening now; "" if the status is enough.
export function doing(job) {
  if (job.status === "queued" && job.queue.reason) return job.queue.reason;
  if (job.status === "failed") return job.failure?.message ?? "";
  if (job.status !== "running" || job.phase === "cancelling" || job.phase === "pausing") return "";
  const left = job.progress.seconds_remaining;
  return left ? `${job.phase} · about ${duration(left)} left` : job.phase;
}

export function progressBar(job) {
  const { step, total_steps: total } = job.progress;
  const share = total ? step / total : 0;
  const bar = el("div", {
    class: `bar ${job.status}`, role: "progressbar", "aria-label": `Progress of ${jobName(job)}`,
    "aria-valuemin": 0, "aria-valuemax": total, "aria-valuenow": step, "aria-valuetext": `step ${step} of ${total}`,
  });
  bar.append(el("i", { style: { width: `${100 * share}%` } }));
  return bar;
}

// The metadata as `key=value`, without that of a sweep, which has a page of its own.
export function labels(job) {
  return Object.entries(job.metadata ?? {}).filter(([name]) => name !== "sweep" && name !== "sweep_run").map(([name, value]) => `${name}=${value}`);
}
