// Parallel coordinates: an axis for each setting and result, a line for each run. The table of the page has the same
// values.

import { signed } from "../../change.js";
import { counted, el, number, svg } from "../../dom.js";
import { settingLabel } from "../../labels.js";

// Where the axes are: beside each other, or one below the other on a phone. `point`: the place of a value on an axis.
const WIDE = (count) => ({
  size: [960, 300],
  point: (at, share) => [70 + (at * 820) / Math.max(1, count - 1), 266 - share * 222],
  label: ([x]) => ({ x, y: 20, "text-anchor": "middle" }),
  tick: ([x, y]) => ({ x: x + 8, y: y + 4 }),
});
const ROW = 78;
const TALL = (count) => ({
  size: [340, ROW * count],
  point: (at, share) => [20 + share * 300, 44 + at * ROW],
  label: ([, y]) => ({ x: 2, y: y - 20 }),
  tick: ([x, y], share) => ({ x, y: y + 19, "text-anchor": share < 0.1 ? "start" : share > 0.9 ? "end" : "middle" }),
});

// names: of the settings; runs: [{job, settings, change, reward}], best first. → a <figure>
export function coordinates(names, runs) {
  const axes = [
    ...names.map((name) => axis(settingLabel(name), runs.map((run) => run.settings[name] ?? null))),
    axis("Final reward", runs.map((run) => run.reward), number),
    axis("Held-out change", runs.map((run) => run.change), signed),
  ].filter((one) => one.values.some((value) => value !== null));
  return el("figure", { class: "chart" },
    el("figcaption", {}, el("span", {}, "Parallel coordinates"), el("span", { class: "faint" }, "Stronger line: better result")),
    drawing("wide", WIDE(axes.length), axes, runs), drawing("tall", TALL(axes.length), axes, runs));
}

// The style sheet shows the one that fits the window.
function drawing(kind, place, axes, runs) {
  return svg("svg", { viewBox: `0 0 ${place.size.join(" ")}`, class: `parallel ${kind}`, role: "img", "aria-label": described(axes, runs) },
    runs.map((run, at) => line(run, at, axes, place, runs)).reverse(),
    axes.map((one, at) => drawAxis(one, at, place)));
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

function drawAxis({ label, ticks }, at, place) {
  const [[x1, y1], [x2, y2]] = [place.point(at, 0), place.point(at, 1)];
  return svg("g", { class: "axis" },
    svg("line", { x1, x2, y1, y2 }),
    svg("text", { ...place.label([x1, y1]), class: "label" }, label),
    ticks.map(([text, share]) => {
      const [cx, cy] = place.point(at, share);
      return [svg("circle", { cx, cy, r: 2.5 }), svg("text", place.tick([cx, cy], share), text)];
    }));
}

function line(run, at, axes, place, runs) {
  const path = axes.flatMap((one, index) => (one.values[at] === null ? [] : [place.point(index, one.place(one.values[at])).map((value) => value.toFixed(1)).join()]));
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
  const settings = Object.entries(best.settings).map(([name, value]) => `${settingLabel(name)} ${value}`).join(", ");
  const change = best.change === null ? "" : ` with a held-out change of ${signed(best.change)}`;
  return `${counted(runs.length, "run")} over ${axes.map((one) => one.label).join(", ")}. Best: ${settings}${change}. The table below has all values.`;
}
