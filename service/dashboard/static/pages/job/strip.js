// The results at the top of a job's page: state, held-out change, steps, time and cost. Boundary: elements of one job.

import { signed } from "../../change.js";
import { ago, bytes, counted, decimals, duration, el, number, secondsRun, svg } from "../../dom.js";
import { doing, isOver, progressBar, statusBadge } from "../../job_parts.js";
import { heldOutName } from "../../metric_names.js";

const WIDTH = 200;
const ENDS = 5; // steps at each end of the training curve that are compared

// → <dl>; `rows`: the job's metrics so far. A rise is green only with `isTrusted`: no finding doubts it.
export function strip(job, rows, isTrusted) {
  const cells = [state(job), result(job, rows, isTrusted), ...retention(job), steps(job), elapsed(job), cost(job)];
  return el("dl", { class: "strip" }, cells.filter(Boolean));
}

function cell(name, value, more, kind = "") {
  const details = [more].flat().filter(Boolean);
  return el("div", { class: kind }, el("dt", {}, name), el("dd", {}, value),
    details.map((one) => (one instanceof Node && one.tagName === "DD" ? one : el("dd", { class: "more" }, one))));
}

function state(job) {
  const now = job.status === "running" ? job.phase : doing(job);
  const words = job.finished_at ? ["Finished ", ago(job.finished_at)] : now || ["Created ", ago(job.created_at)];
  const place = job.queue.position && `Place ${number(job.queue.position)} in the queue`;
  return cell("State", statusBadge(job), [place, el("span", {}, words), job.attempt > 1 && `Attempt ${number(job.attempt)}`]);
}

// ---- before → after

function result(job, rows, isTrusted) {
  const { baseline, last, best, verdict } = job.eval;
  if (baseline && last) return heldOut(baseline, last, best, verdict, isTrusted);
  const measure = rows.some((row) => row.reward !== undefined) ? "reward" : "loss";
  const values = rows.map((row) => row[measure]).filter((value) => value !== undefined);
  if (!values.length) return null;
  const ends = values.length < 2 * ENDS ? values.slice(-1) : [mean(values.slice(0, ENDS)), mean(values.slice(-ENDS))];
  const about = ends.length > 1 ? `Mean of the first and the last ${ENDS} steps. No held-out rows.` : "No held-out rows";
  return cell(`Training ${measure}`, arrow(ends), about, "wide");
}

function heldOut(baseline, last, best, verdict, isTrusted) {
  const measure = last.reward === undefined ? "loss" : "reward";
  const name = heldOutName(last, `Held-out ${measure}`);
  if (last[measure] === undefined) return cell(name, "–", "No row could be scored", "wide");
  const isFirst = last.step === 0;
  const noise = verdict && hasInterval(verdict) ? (verdict.high - verdict.low) / 2 : 0.0005;
  const hasPeak = best?.step > 0 && best.step !== last.step && Math.abs(best[measure] - last[measure]) > noise;
  const peak = hasPeak && `Best: ${decimals(best[measure])} at step ${number(best.step)}`;
  const about = isFirst ? ["Before training"] : [verdict && change(verdict, isTrusted), peak];
  return cell(name, arrow(isFirst ? [last[measure]] : [baseline[measure], last[measure]]), about, "wide held-out");
}

// "+0.529 (95% CI 0.443 to 0.614)", with the interval drawn; the verdict's text if it has no numbers.
function change(verdict, isTrusted) {
  if (!hasInterval(verdict)) return verdict.text;
  const { difference, low, high, rows } = verdict;
  if (low === high && !difference) return `No change on ${counted(rows, "row")}`;
  const text = `${signed(difference)} (95% CI ${decimals(low)} to ${decimals(high)})`;
  const isSignificant = low > 0 || high < 0;
  const tone = !isSignificant || (low > 0 && !isTrusted) ? "" : low > 0 ? "good" : "bad";
  return el("dd", { class: "more change" },
    el("span", {}, el("strong", { class: tone }, text), isSignificant ? "" : ", not significant", rows ? ` · ${counted(rows, "row")}` : ""),
    interval(verdict, tone));
}

export const hasInterval = ({ difference, low, high }) => [difference, low, high].every(Number.isFinite);

// The difference as a dot on its interval, on an axis that includes zero.
function interval({ difference, low, high }, tone) {
  const edge = Math.max(Math.abs(low), Math.abs(high), 1e-9);
  const [from, to] = [low >= 0 ? -0.1 * edge : -edge, high <= 0 ? 0.1 * edge : edge];
  const across = (value) => (6 + ((value - from) / (to - from)) * (WIDTH - 12)).toFixed(1);
  const label = `Difference ${difference}, 95 percent interval ${low} to ${high}`;
  return svg("svg", { viewBox: `0 0 ${WIDTH} 16`, class: `interval ${tone}`, role: "img", "aria-label": label },
    svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: 8, y2: 8 }),
    svg("line", { class: "zero", x1: across(0), x2: across(0), y1: 1, y2: 15 }),
    svg("line", { class: "span", x1: across(low), x2: across(high), y1: 8, y2: 8 }),
    svg("circle", { cx: across(difference), cy: 8, r: 4.5 }));
}

function retention(job) {
  return Object.entries(job.eval.retention ?? {}).filter(([, kept]) => kept.last?.reward !== undefined).map(([name, kept]) =>
    cell(`Retention: ${name}`, arrow([kept.baseline.reward, kept.last.reward]), kept.verdict?.text));
}

const arrow = (values) => (values.length < 2 ? decimals(values[0])
  : [el("small", {}, decimals(values[0])), el("span", { class: "arrow", role: "img", "aria-label": "to" }), decimals(values[1])]);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// ---- steps, time, cost

function steps(job) {
  const { step, total_steps: total, seconds_remaining: left } = job.progress;
  const words = isOver(job) || !left ? null : `About ${duration(left)} left`;
  return cell("Step", [number(step, 7), el("small", {}, ` of ${number(total, 7)}`)], [progressBar(job), words]);
}

function elapsed(job) {
  if (!job.started_at) return null;
  return cell(isOver(job) ? "Duration" : "Elapsed", duration(secondsRun(job)), el("span", {}, "Started ", ago(job.started_at)));
}

function cost(job) {
  const { sampled_tokens: sampled, trained_tokens: trained, peak_memory_bytes: peak, seconds } = job.actual ?? {};
  const gpus = job.resources.gpus;
  const tokens = sampled || trained;
  if (!tokens && !gpus) return null;
  const memory = peak && `${bytes(peak)} peak memory`;
  const spent = seconds ?? (job.started_at && secondsRun(job));
  if (gpus && spent) return cell("GPU time", duration(spent * gpus), [`${counted(gpus, "GPU")} · ${number(tokens)} tokens`, memory]);
  return tokens ? cell("Tokens", short(tokens), [sampled ? "Sampled" : "Trained", memory && ` · ${memory}`].filter(Boolean).join("")) : null;
}

// 12 345 678 → "12.3 M"
function short(count) {
  if (count < 1e4) return number(count);
  return count < 1e6 ? `${number(count / 1e3, 3)} k` : `${number(count / 1e6, 3)} M`;
}
