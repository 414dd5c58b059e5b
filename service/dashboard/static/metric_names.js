// The engine's metrics: the format of their values, and which ones share a chart. A chart is left out if the job has
// none of its metrics.

import { decimals, duration, isPresent, number, percent } from "./dom.js";
import { metricLabel } from "./labels.js";

const SHARES = new Set(["frac_reward_zero_std", "completions/clipped_ratio", "pass_at_1", "pass_at_group"]);

export function formatOf(name) {
  if (SHARES.has(name) || /(error|failure)_rate$/.test(name) || name.startsWith("clip_ratio/")) return percent;
  if (name.endsWith("_seconds") || name === "step_time") return duration;
  return (value) => number(value);
}

// name → series; the same number of points for each, null where a row has none.
export function seriesOf(rows, name, more = {}) {
  const present = rows.filter((row) => row[name] !== undefined);
  return { name: metricLabel(name), x: present.map((row) => row.step), y: present.map((row) => row[name]), ...more };
}

const matching = (names, pattern) => [...names].filter((name) => pattern.test(name)).sort();
const lines = (pattern, label) => (rows, names) =>
  matching(names, pattern).map((name) => seriesOf(rows, name, { name: label?.(name) ?? metricLabel(name) }));
const one = (name, more) => (rows, names) => (names.has(name) ? [seriesOf(rows, name, more)] : []);
const middle = (name) => name.split("/").slice(1, -1).join("/");

const HELD_OUT = "eval/";

// The held-out rows' values, preceded by the evaluation before training, which belongs to no step.
function heldOutSeries(rows, name, { baseline }, more) {
  const line = seriesOf(rows, HELD_OUT + name, { markers: true, ...more });
  if (baseline?.[name] === undefined || line.x[0] === 0) return line;
  return { ...line, x: [0, ...line.x], y: [baseline[name], ...line.y] };
}

// A job's values of any metric.
export function valuesOf(job, rows, name, more) {
  if (!name.startsWith(HELD_OUT)) return seriesOf(rows, name, more);
  return heldOutSeries(rows, name.slice(HELD_OUT.length), job.eval, more);
}

function heldOut(rows, names, name, evaluated) {
  if (!names.has(HELD_OUT + name)) return [];
  return [heldOutSeries(rows, name, evaluated, { name: heldOutName(evaluated.last), color: 2 })];
}

// "Held-out (greedy)": how the rows of an evaluation were sampled, if known.
export function heldOutName(measured, name = "Held-out") {
  const temperature = measured?.temperature;
  if (!isPresent(temperature)) return name;
  return `${name} (${temperature === 0 ? "greedy" : `T = ${number(temperature)}`})`;
}

// mean ± standard error of `count` rewards, cut at 0 and 1 if no reward can have been outside: the deviation of values
// between 0 and 1 is at most √(mean × (1 − mean)), except for the correction of a small sample.
function band(means, deviations, count) {
  const isShare = means.every((mean, at) => mean >= 0 && mean <= 1 && deviations[at] ** 2 <= 1.2 * mean * (1 - mean) + 1e-6);
  const [lowest, highest] = isShare ? [0, 1] : [-Infinity, Infinity];
  return {
    low: means.map((mean, at) => Math.max(lowest, mean - deviations[at] / Math.sqrt(count))),
    high: means.map((mean, at) => Math.min(highest, mean + deviations[at] / Math.sqrt(count))),
  };
}

// One part alone is the reward, drawn already.
function parts(rows, names, evaluated) {
  const found = lines(/^rewards\/.+\/mean$/, middle)(rows, names);
  const held = matching(names, /^eval\/rewards\/.+\/mean$/).map((name) => name.slice(HELD_OUT.length)).flatMap((name) =>
    heldOut(rows, names, name, evaluated).map((line) => ({ ...line, name: `${middle(name)}, held-out`, color: undefined })));
  return found.length > 1 ? [...found, ...held] : [];
}

// Completions of a step, if the request says how many.
function completionsOf({ method }) {
  const { group_size: size, prompts_per_step: prompts, batch_size: batch } = method[method.type].hyperparameters;
  return size * (prompts ?? batch);
}

function rewards(rows, names, evaluated, job) {
  if (!names.has("reward")) return [];
  const line = seriesOf(rows, "reward", { color: 1 });
  const spread = seriesOf(rows, "reward_std").y;
  const count = completionsOf(job);
  if (spread.length === line.y.length && count > 0) Object.assign(line, band(line.y, spread, count));
  const grader = job.method[job.method.type].eval_grader ? ", evaluation grader" : "";
  const held = heldOut(rows, names, "reward", evaluated).map((line) => ({ ...line, name: `${line.name}${grader}` }));
  return [{ ...line, name: held.length ? "Training" : "Reward" }, ...held];
}

function losses(rows, names, evaluated) {
  const held = heldOut(rows, names, "loss", evaluated);
  return [...one("loss", held.length ? { name: "Training" } : {})(rows, names), ...held];
}

function lengths(rows, names) {
  const [line] = one("completions/mean_length")(rows, names);
  if (!line) return [];
  const edges = { low: "completions/min_length", high: "completions/max_length" };
  for (const [edge, name] of Object.entries(edges)) {
    const values = seriesOf(rows, name).y;
    if (values.length === line.y.length) line[edge] = values;
  }
  return [line.low && line.high ? line : { ...line, low: undefined }];
}

// Rates of failures are drawn only if there are any.
const failures = (pattern) => (rows, names) => {
  const found = lines(pattern, middle)(rows, names);
  return found.some((series) => series.y.some((value) => value > 0)) ? found : [];
};

const phases = lines(/^timing\/.+_seconds$/, (name) => name.slice("timing/".length, -"_seconds".length));
const speeds = lines(/^perf\/.+_tokens_per_second$/, (name) => name.slice(5).split("_")[0]);
const tiny = { yaxis: { exponentformat: "e" } }; // a loss of 60n is no loss of 60
const share = { format: percent, fromZero: true, yaxis: { tickformat: ".2~%" } };

// In the order of the page; the first one with values is the large one. `series(rows, names, job.eval, job)`; `hint`:
// how to read it.
export const CHARTS = [
  { title: "Reward", series: rewards, format: decimals,
    hint: "Mean per step. The band is ± one standard error of that mean. Training answers are sampled; the legend names how held-out answers are decoded. Compare changes, not levels." },
  { title: "Reward by grader", series: parts, format: decimals },
  { title: "Loss", series: losses, ...tiny },
  { title: "KL divergence to the reference", series: one("kl"), fromZero: true, ...tiny },
  { title: "Entropy", series: one("entropy"), fromZero: true },
  { title: "Completion length", series: lengths, fromZero: true, hint: "Tokens: mean, minimum and maximum." },
  { title: "Truncated completions", series: one("completions/clipped_ratio"), ...share },
  { title: "Groups without signal", series: one("frac_reward_zero_std"), ...share,
    hint: "All completions of the group got the same reward, so it teaches nothing." },
  { title: "Pass rate", series: lines(/^pass_at_/, (name) => (name === "pass_at_1" ? "completion" : "group")), ...share },
  { title: "Grader errors", series: failures(/^rewards\/.+\/error_rate$/), ...share },
  { title: "Reward by environment", series: lines(/^environments\/.+\/reward$/, middle), format: decimals },
  { title: "Turns by environment", series: lines(/^environments\/.+\/turns_mean$/, middle), fromZero: true },
  { title: "Failed sessions", series: failures(/^environments\/.+\/failure_rate$/), ...share },
  { title: "Tokens per second", series: speeds, fromZero: true },
  { title: "Time by phase", series: phases, bars: true, format: duration, yaxis: { ticksuffix: " s" } },
  { title: "Gradient norm", series: one("grad_norm"), fromZero: true, ...tiny },
];
