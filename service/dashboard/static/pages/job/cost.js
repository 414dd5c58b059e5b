// A job's expected and actual cost.

import { bytes, duration, el, number, section } from "../../dom.js";

const ROWS = [
  ["Steps", "steps", number],
  ["Sampled tokens", "sampled_tokens", number],
  ["Trained tokens", "trained_tokens", number],
  ["Peak memory", "peak_memory_bytes", bytes],
  ["Time", "seconds", duration],
];

// Empty for a job without an estimate.
export function cost(job) {
  if (!job.estimate) return [];
  const cell = (text) => el("td", {}, text);
  return [section("Cost and estimate", el("div", { class: "panel flush scroll" }, el("table", { class: "list" },
    el("thead", {}, el("tr", {}, ["Measure", "Expected", job.finished_at ? "Actual" : "So far"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, ROWS.map(([label, name, unit]) => el("tr", {}, el("th", { scope: "row" }, label),
      cell(name === "seconds" ? expectedTime(job.estimate) : between(job.estimate[name], unit)), cell(shown(job.actual?.[name], unit)))))),
  job.actual?.machine && el("p", { class: "hint" }, `On ${job.actual.machine}.`)))];
}

// "about 40 s, from 3 earlier runs with this model on host", or that it is unknown.
export function expectedTime({ likely_seconds: seconds, basis }) {
  return seconds ? `about ${duration(seconds)}, from ${basis}` : "unknown";
}

export function between(expected, unit) {
  if (expected === null || expected === undefined) return "unknown";
  if (typeof expected === "number") return unit(expected);
  return expected.low === expected.high ? unit(expected.low) : `${unit(expected.low)} to ${unit(expected.high)}`;
}

const shown = (value, unit) => (value === null || value === undefined ? "–" : unit(value));
