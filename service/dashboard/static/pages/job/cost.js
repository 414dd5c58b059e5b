// A job's expected and actual cost.

import { bytes, duration, el, isPresent, number, section, table } from "../../dom.js";

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
  const columns = ["Measure", "Expected", job.finished_at ? "Actual" : "So far"];
  const rows = ROWS.map(([label, name, unit]) => el("tr", {}, el("th", { scope: "row" }, label),
    el("td", {}, name === "seconds" ? expectedTime(job.estimate) : between(job.estimate[name], unit)),
    el("td", {}, shown(job.actual?.[name], unit))));
  return [section("Cost and estimate", table("Expected and actual cost", columns, rows),
    job.actual?.machine && el("p", { class: "hint" }, `On ${job.actual.machine}.`))];
}

// "about 40 s, from 3 earlier runs with this model on host", or that it is unknown.
export function expectedTime({ likely_seconds: seconds, basis }) {
  return seconds ? `about ${duration(seconds)}, from ${basis}` : "unknown";
}

export function between(expected, unit) {
  if (!isPresent(expected)) return "unknown";
  if (typeof expected === "number") return unit(expected);
  return expected.low === expected.high ? unit(expected.low) : `${unit(expected.low)} to ${unit(expected.high)}`;
}

const shown = (value, unit) => (isPresent(value) ? unit(value) : "–");
