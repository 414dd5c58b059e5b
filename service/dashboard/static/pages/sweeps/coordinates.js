// Parallel coordinates: an axis for each setting and result, a line for each run. The table of the page has the same
// values.

import { el, number, svg } from "../../dom.js";
import { points } from "../../change.js";

const WIDTH = 960;
const HEIGHT = 300;
const EDGE = { top: 44, bottom: 34, side: 70 };

// names: of the settings; runs: [{job, settings, change, reward}], best first. → a <figure>
export function coordinates(names, runs) {
  const axes = [
    ...names.map((name) => axis(settingName(name), runs.map((run) => run.settings[name] ?? null))),
    axis("Final reward", runs.map((run) => run.reward), number),
    axis("Held-out change", runs.map((run) => run.change), points),
  ].filter((one) => one.values.some((value) => value !== null));
  const across = (at) => EDGE.side + (at * (WIDTH - 2 * EDGE.side)) / Math.max(1, axes.length - 1);
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "parallel", role: "img", "aria-label": described(axes, runs) },
    runs.map((run, at) => line(run, at, axes, across, runs)).reverse(),
    axes.map((one, at) => drawAxis(one, across(at))));
  return el("figure", { class: "chart" },
    el("figcaption", {}, el("span", {}, "Parallel coordinates"), el("span", { class: "faint" }, "Stronger line: better result")),
    el("div", { class: "scroll drawing", tabindex: 0, role: "region", "aria-label": "Parallel coordinates" }, drawing));
}

// Numbers are placed by their value (settings that span more than a factor of 20 by its logarithm), words evenly.
function axis(label, values, format) {
  const present = values.filter((value) => value !== null);
  const numbers = present.map(Number);
  const isNumeric = numbers.every(Number.isFinite);
  if (!isNumeric) {
    const words = [...new Set(present)];
    const place = (value) => (words.length > 1 ? words.indexOf(value) / (words.length - 1) : 0.5);
    return { label, values, place, ticks: words.map((word) => [word, place(word)]) };
  }
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const scale = !format && low > 0 && high / low > 20 ? Math.log : (value) => value;
  const place = (value) => (high > low ? (scale(Number(value)) - scale(low)) / (scale(high) - scale(low)) : 0.5);
  const marked = format ? [...new Set([low, high])] : [...new Set(numbers)];
  return { label, values, place, ticks: marked.map((value) => [format ? format(value) : present[numbers.indexOf(value)], place(value)]) };
}

const up = (share) => HEIGHT - EDGE.bottom - share * (HEIGHT - EDGE.top - EDGE.bottom);

function drawAxis({ label, ticks }, x) {
  return svg("g", { class: "axis" },
    svg("line", { x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }),
    svg("text", { x, y: 20, class: "label" }, label),
    ticks.map(([text, share]) => [svg("circle", { cx: x, cy: up(share), r: 2.5 }),
      svg("text", { x: x + 8, y: up(share) + 4 }, text)]));
}

function line(run, at, axes, across, runs) {
  const path = axes.flatMap((one, place) => (one.values[at] === null ? [] : [`${across(place).toFixed(1)},${up(one.place(one.values[at])).toFixed(1)}`]));
  const known = runs.map((other) => other.change ?? other.reward).filter((value) => value !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const value = run.change ?? run.reward;
  const strength = value === null ? 0.2 : high > low ? (value - low) / (high - low) : 1;
  const root = svg("polyline", { points: path.join(" "), class: at === 0 && run.change !== null ? "best" : "", style: { opacity: (0.25 + 0.75 * strength).toFixed(2) } });
  root.append(svg("title", {}, run.job.name ?? run.job.id));
  return root;
}

function described(axes, runs) {
  const best = runs.find((run) => run.change !== null) ?? runs[0];
  const settings = Object.entries(best.settings).map(([name, value]) => `${settingName(name)} ${value}`).join(", ");
  const change = best.change === null ? "" : ` with a held-out change of ${points(best.change)} points`;
  return `${runs.length} runs over ${axes.map((one) => one.label).join(", ")}. Best: ${settings}${change}. The table below has all values.`;
}

// "method.reinforcement.hyperparameters.beta" → "beta"
export const settingName = (path) => path.split(".").at(-1);
