// Held-out rows before and after: the two numbers, the verdict, and its 95% interval.

import { el, number, section, svg } from "../../dom.js";

const WIDTH = 320;
const HEIGHT = 44;

// → the section, or nothing for a job without an evaluation.
export function evaluation(job) {
  const { baseline, best, last, verdict, retention } = job.eval;
  if (!baseline && !last) return [];
  return [section("Evaluation on held-out rows", el("div", { class: "panel evaluation" },
    el("dl", { class: "figures" },
      figure("Before training", baseline), figure("Best", best, best?.step), figure("Last", last, last?.step)),
    verdict && verdictOf(verdict),
    Object.entries(retention ?? {}).map(([name, kept]) => kept.verdict && el("div", {},
      el("h3", {}, `Retention: ${name}`), verdictOf(kept.verdict)))))];
}

function figure(name, measured, step) {
  if (!measured) return null;
  const isUnscored = measured.reward === undefined && measured.loss === undefined;
  if (isUnscored) return el("div", {}, el("dt", {}, name), el("dd", {}, "–", el("small", {}, "no scorable row")));
  const isLoss = measured.reward === undefined;
  const value = isLoss ? measured.loss : measured.reward;
  const about = [isLoss ? "loss" : "reward", step !== undefined && `step ${number(step)}`].filter(Boolean).join(" · ");
  return el("div", {}, el("dt", {}, name), el("dd", {}, number(value), el("small", {}, about)));
}

function verdictOf(verdict) {
  const { text, difference, low, high, rows } = verdict;
  const hasInterval = [difference, low, high].every((value) => typeof value === "number");
  const tone = !hasInterval || (low <= 0 && high >= 0) ? "" : low > 0 ? "good" : "bad";
  return el("div", { class: `verdict ${tone}` },
    el("p", {}, el("strong", {}, text), rows ? ` over ${number(rows)} rows` : ""),
    hasInterval && interval(difference, low, high));
}

// The difference as a dot on its interval, above an axis that includes zero.
function interval(difference, low, high) {
  const edge = 1.15 * Math.max(Math.abs(low), Math.abs(high), 1e-9);
  const from = low >= 0 ? -0.15 * edge : -edge;
  const to = high <= 0 ? 0.15 * edge : edge;
  const across = (value) => (8 + ((value - from) / (to - from)) * (WIDTH - 16)).toFixed(1);
  const label = `Difference ${number(difference)}, 95 percent interval ${number(low)} to ${number(high)}`;
  const mark = (value, text) => svg("text", { x: across(value), y: HEIGHT - 4, "text-anchor": "middle" }, text);
  return svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "interval", role: "img", "aria-label": label },
    svg("line", { class: "axis", x1: 0, x2: WIDTH, y1: 26, y2: 26 }),
    svg("line", { class: "zero", x1: across(0), x2: across(0), y1: 4, y2: 30 }),
    svg("line", { class: "span", x1: across(low), x2: across(high), y1: 14, y2: 14 }),
    svg("circle", { cx: across(difference), cy: 14, r: 5 }),
    mark(0, "0"), mark(difference, signed(difference)));
}

const signed = (value) => `${value > 0 ? "+" : ""}${number(value, 3)}`;
