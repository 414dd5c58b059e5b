// The change of a job's held-out reward or loss, as tables show it: sign, tone, and whether it is significant.

import { decimals, el } from "./dom.js";

const isNumber = (value) => value !== null && value !== undefined;

// → {text, detail, tone: good | bad | unclear, difference}; null without a comparison with the start.
export function changeOf(job) {
  const { difference, low, high } = job.eval.verdict ?? {};
  if (!isNumber(difference)) return null;
  const text = signedPoints(difference);
  if (!isNumber(low) || !isNumber(high)) return { text, detail: "no interval", tone: "unclear", difference };
  const tone = low > 0 ? "good" : high < 0 ? "bad" : "unclear";
  const interval = `${points(low)} to ${points(high)}`;
  return { text, detail: tone === "unclear" ? "not significant" : interval, interval, tone, difference };
}

// → a <span> with the difference, of rewards in points; "–" without one.
export function changeCell(job) {
  const change = changeOf(job);
  if (!change) return lossCell(job.eval);
  return el("span", { class: `change ${change.tone}`, title: change.interval && `95% CI ${change.interval} points` },
    el("strong", {}, change.text), el("span", { class: "unseen" }, " points, "),
    el("span", { class: "small faint detail" }, change.detail));
}

function lossCell({ baseline, last }) {
  const difference = last?.step > 0 ? last.loss - baseline?.loss : NaN;
  if (!Number.isFinite(difference)) return el("span", { class: "faint" }, "–");
  const text = `${difference > 0 ? "+" : ""}${decimals(difference)}`;
  return el("span", { class: `change ${difference < 0 ? "good" : "bad"}` },
    el("strong", {}, text), " ", el("span", { class: "small faint detail" }, "loss"));
}

export const points = (value) => (100 * value).toFixed(1).replace("-", "−");
export const signedPoints = (value) => `${value > 0 ? "+" : ""}${points(value)}`;
