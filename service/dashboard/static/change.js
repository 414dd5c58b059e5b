// The change of a job's held-out reward or loss, as tables show it: sign, tone, and whether it is significant.

import { decimals, el, isPresent } from "./dom.js";

// → {text, detail, tone: good | bad | unclear, difference}; null without a comparison with the start.
export function changeOf(job) {
  const { difference, low, high } = job.eval.verdict ?? {};
  if (!isPresent(difference)) return null;
  const text = signed(difference);
  if (!isPresent(low) || !isPresent(high)) return { text, detail: "no interval", tone: "unclear", difference };
  const tone = low > 0 ? "good" : high < 0 ? "bad" : "unclear";
  const interval = `${decimals(low)} to ${decimals(high)}`;
  return { text, detail: tone === "unclear" ? "not significant" : interval, interval, tone, difference };
}

// → a <span> with the difference; "–" without one. A rise is green only with `isTrusted`: no finding doubts it.
export function changeCell(job, isTrusted = true) {
  const change = changeOf(job);
  if (!change) return lossCell(job.eval);
  const tone = change.tone === "good" && !isTrusted ? "unclear" : change.tone;
  return el("span", { class: `change ${tone}`, title: change.interval && `Change of the mean held-out reward, 95% CI ${change.interval}` },
    el("strong", {}, change.text), " ", el("span", { class: "small faint detail" }, change.detail));
}

function lossCell({ baseline, last }) {
  const difference = last?.step > 0 ? last.loss - baseline?.loss : NaN;
  if (!Number.isFinite(difference)) return el("span", { class: "faint" }, "–");
  const text = signed(difference);
  return el("span", { class: `change ${difference < 0 ? "good" : "bad"}` },
    el("strong", {}, text), " ", el("span", { class: "small faint detail" }, "loss"));
}

export const signed = (value) => `${value > 0 ? "+" : ""}${decimals(value)}`;
