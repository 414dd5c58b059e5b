// One sweep: `#/sweeps/<name>`, the jobs with the label `sweep`. Parallel coordinates, and the same as a table.

import { styled } from "../../address.js";
import { JOBS, paged, pause } from "../../api.js";
import { changeCell } from "../../change.js";
import { counted, el, empty, failed, heading, loading, number, section, table } from "../../dom.js";
import { isOver, jobName, statusBadge } from "../../job_parts.js";
import { settingLabel } from "../../labels.js";
import { coordinates } from "./coordinates.js";
import { nextStep } from "./next.js";

const PAGE = 100;
const MOST = 1000;
const REFRESH_SECONDS = 4;
const MOST_COMPARED = 8;

export async function show(root, params, signal) {
  const box = el("div", { class: "sweep" });
  const compare = el("a", { class: "button", hidden: true }, "Compare best");
  root.append(heading(`Sweep ${params.id}`, { above: el("a", { class: "back", href: "#/jobs" }, "Jobs"), actions: [compare] }), box);
  loading(box, "Loading the sweep");
  let [, jobs] = await Promise.all([styled("sweeps"), jobsOf(params.id, signal)]);
  if (!jobs.length) return empty(box, "No jobs in this sweep", `grpo sweep job.json --set learning_rate=1e-5,3e-5 --name ${params.id} creates some.`);
  const trouble = el("div");
  const parts = el("div", { class: "pile" });
  box.replaceChildren(trouble, parts);
  for (;;) {
    draw(parts, jobs, compare);
    if (jobs.every(isOver)) return;
    await pause(REFRESH_SECONDS, signal);
    try {
      jobs = await jobsOf(params.id, signal);
      trouble.replaceChildren();
    } catch (error) {
      if (signal.aborted || error.status === undefined) throw error;
      if (error.status !== 0) failed(trouble, error);
    }
  }
}

async function jobsOf(name, signal) {
  const pages = paged(JOBS, { limit: PAGE, sort: "-held_out", "metadata[sweep]": name }, { signal });
  const jobs = [];
  while (pages.hasMore && jobs.length < MOST) jobs.push(...(await pages.next()));
  return jobs;
}

// Best held-out change first. Nothing is drawn again while nothing has changed.
function draw(root, jobs, compare) {
  const runs = jobs.map((job) => ({ job, settings: settingsOf(job), change: job.eval.verdict?.difference ?? null, reward: job.reward }));
  const state = JSON.stringify(runs.map(({ job, change, reward }) => [job.id, job.name, job.status, job.progress.step, change, reward]));
  if (root.dataset.state === state) return;
  root.dataset.state = state;
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))];
  const best = jobs.slice(0, MOST_COMPARED);
  compare.hidden = best.length < 2;
  compare.textContent = `Compare ${best.length === jobs.length ? "all" : `best ${best.length}`}`;
  compare.href = `#/compare?jobs=${best.map((job) => job.id).join(",")}`;
  keepingFocus(root, summary(jobs), section("Next step", nextStep(names, runs)), section("Settings and results", coordinates(names, runs)), section("Runs", runsTable(names, runs)));
}

// Replaces the children; the same link has the focus afterwards, in the table or above it.
function keepingFocus(root, ...children) {
  const held = root.contains(document.activeElement) ? document.activeElement : null;
  root.replaceChildren(...children);
  const href = held?.getAttribute("href");
  if (href) root.querySelector(`${held.closest("table") ? "table " : ""}a[href="${CSS.escape(href)}"]`)?.focus({ preventScroll: true });
}

function summary(jobs) {
  const counts = new Map();
  for (const job of jobs) counts.set(job.status, (counts.get(job.status) ?? 0) + 1);
  const words = [...counts].map(([status, count]) => `${count} ${status}`).join(", ");
  return el("p", { class: "faint" }, `${counted(jobs.length, "job")}: ${words}`);
}

function runsTable(names, runs) {
  const columns = ["Run", ...names.map(settingLabel), "Held-out change", "Final reward", "Status"];
  return table("Runs, best held-out change first", columns, runs.map(({ job, settings }) => el("tr", {},
    el("th", { scope: "row" }, el("a", { href: `#/jobs/${job.id}` }, jobName(job))),
    names.map((name) => el("td", { class: "mono" }, settings[name] ?? "–")),
    el("td", {}, changeCell(job)), el("td", {}, number(job.reward)), el("td", {}, statusBadge(job)))), "cards");
}

// The label `sweep_run`: the values as they were given to `grpo sweep`.
function settingsOf(job) {
  try {
    const given = JSON.parse(job.metadata.sweep_run);
    return Object.fromEntries(Object.entries(given).map(([name, value]) => [name, String(value)]));
  } catch {
    return {};
  }
}
