// Charts: a thin wrapper around plotly.js, which is loaded with the first chart.
// A chart is a <figure>: title, its series with their newest value (or that of the step under the pointer), the
// drawing with a sentence for screen readers, and a table of the same numbers. Boundary: series in, drawing out;
// pages choose the metrics.
// A series: {name, x: [], y: [], low: [], high: [], color: 1…8, dash: "dot", text: [], markers: true}.

import { ChartGroup, smoothed, within } from "./chart_group.js";
import { legend, markerOf } from "./chart_legend.js";
import { el, isPresent, number, svg, table } from "./dom.js";
import { vendored } from "./vendor.js";

const coarse = window.matchMedia("(pointer: coarse)");
const MARKED = 60; // more dots than this hide the line
const MOST_BARS = 100; // more are drawn as areas, which look the same and are faster

// The global Plotly, loaded once.
export const plotly = () => vendored("plotly.min.js").then(() => window.Plotly);

// Lines over steps, a band where a series has `low` and `high`. → {root, plot, update(series), ready, isStale}; it is
// stale if it could not be drawn because it is not on the page.
// options: {title, describe: (series) → sentence, format: (y) → text, xTitle, range: [low, high], height,
// group: the ChartGroup whose zoom, pointer and settings it shares}
export function lineChart(options) {
  return figure(options, lineTraces, {});
}

// Bars; several series stack unless `grouped`. The same options and series.
export function barChart(options) {
  const mode = options.grouped ? "group" : "stack";
  return figure(options, options.grouped ? barTrace : stackedTrace, { barmode: mode, bargap: 0.15 });
}

function figure(options, tracesOf, layout) {
  const group = options.group ?? new ChartGroup();
  const plot = el("div", { class: "plot", role: "img" });
  const numbers = el("div");
  const details = el("details", {}, el("summary", {}, "Show as table"), numbers);
  const format = formatOf(options);
  const names = legend(format, () => chart.draw());
  const root = el("figure", { class: "chart" },
    el("figcaption", {}, el("span", {}, options.title), names.root), plot, details);
  if (options.height) plot.style.height = `${options.height}px`;
  const marker = markerOf(plot, group, options.xTitle ?? "step");
  let series = [];
  const fillTable = () => details.open && numbers.replaceChildren(tableOf(series, options));
  details.addEventListener("toggle", fillTable);
  const chart = { root, plot, ready: Promise.resolve() };
  chart.draw = async () => {
    chart.isStale = true;
    const library = await plotly();
    if (!root.isConnected || !series.length) return;
    const drawn = series.map((one, at) => ({ ...within(one, group.range), color: one.color ?? at + 1, isHidden: names.hidden.has(one.name) }));
    const traces = drawn.filter((one) => !one.isHidden).flatMap((one) => tracesOf(one, group.settings.smoothing));
    plot.querySelector(".preview")?.remove();
    await library.react(plot, traces, kept(plot, layoutOf(options, series, group, layout)), config());
    marker.listen();
    chart.isStale = false;
  };
  chart.showAt = (step) => {
    marker.show(step);
    names.showAt(step);
  };
  onTheme(root, chart.draw);
  group.add(chart);
  chart.update = (next) => {
    series = next;
    marker.steps = [...new Set(series.flatMap((one) => one.x))].sort((a, b) => a - b);
    names.update(series);
    plot.setAttribute("aria-label", (options.describe ?? described)(series, options));
    fillTable();
    if (!window.Plotly && !plot.hasChildNodes()) plot.append(preview(series));
    return (chart.ready = chart.draw());
  };
  return chart;
}

function lineTraces(series, smoothing) {
  const color = seriesColor(series.color);
  const x = series.x;
  const isSmooth = smoothing > 0 && !series.markers && x.length > 2;
  const flat = (values) => (isSmooth ? smoothed(values, smoothing) : values);
  const line = {
    type: "scatter", mode: (series.markers && x.length <= MARKED) || x.length < 2 ? "lines+markers" : "lines", name: series.name,
    x, y: flat(series.y), connectgaps: true, hoverinfo: "skip",
    line: { color, width: 2.25, dash: series.dash }, marker: { size: 6, color },
  };
  const raw = { ...line, y: series.y, name: `${series.name} (raw)`, line: { color: faded(color, 0.3), width: 1 } };
  const lines = isSmooth ? [raw, line] : [line];
  if (!series.low) return lines;
  const edge = { type: "scatter", mode: "lines", x, line: { width: 0 }, hoverinfo: "skip" };
  const band = { ...edge, y: flat(series.high), fill: "tonexty", fillcolor: faded(color, 0.1), name: `${series.name} ±` };
  return [{ ...edge, y: flat(series.low) }, band, ...lines];
}

// The lines alone, until the library is loaded, which takes longer than everything else on the page.
function preview(series) {
  const scales = ["x", "y"].map((axis) => {
    const values = series.flatMap((one) => one[axis]).filter(Number.isFinite);
    const [low, high] = [Math.min(...values), Math.max(...values)];
    return (value) => (value - low) / (high - low || 1);
  });
  const place = (x, y) => `${(1000 * scales[0](x)).toFixed(1)},${(300 - 300 * scales[1](y)).toFixed(1)}`;
  const points = ({ x, y }) => x.map((at, index) => Number.isFinite(y[index]) && place(at, y[index])).filter(Boolean).join(" ");
  return svg("svg", { class: "preview", viewBox: "0 0 1000 300", preserveAspectRatio: "none", "aria-hidden": "true" },
    series.map((one, at) => svg("polyline", { points: points(one), style: { stroke: seriesColor(one.color ?? at + 1) } })));
}

function barTrace(series) {
  const color = series.colors ?? seriesColor(series.color);
  return {
    type: "bar", name: series.name, x: series.x, y: series.y, text: series.text, hoverinfo: "skip",
    marker: { color, line: { width: 0 } }, textposition: "outside", cliponaxis: false,
  };
}

function stackedTrace(series) {
  if (series.x.length <= MOST_BARS) return barTrace(series);
  const color = seriesColor(series.color);
  return {
    type: "scatter", mode: "lines", stackgroup: "all", name: series.name, x: series.x, y: series.y, hoverinfo: "skip",
    line: { width: 0, color }, fillcolor: color,
  };
}

function layoutOf(options, series, group, layout) {
  const ink = token("--ink-2");
  const axis = {
    gridcolor: token("--line"), zerolinecolor: token("--line"), linecolor: token("--line-2"),
    tickfont: { color: ink, size: 11 }, automargin: true, nticks: 6,
  };
  const isLog = group.settings.isLog && series.every((one) => one.y.every((y) => y === null || y > 0));
  const isPositive = series.every((one) => one.y.every((y) => y === null || y >= 0));
  const range = group.range ?? (layout.barmode ? null : around(series.flatMap((one) => one.x)));
  const steps = range ? { range } : { autorange: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, color: ink, size: 11 },
    margin: { l: 8, r: 10, t: 8, b: 8 }, autosize: true, hovermode: false, showlegend: false,
    xaxis: {
      ...axis, showgrid: false, zeroline: false, title: titleOf(options.xTitle), dtick: wholeSteps(series),
      fixedrange: coarse.matches, ...steps, ...options.xaxis,
    },
    yaxis: {
      ...axis, showline: false, type: isLog ? "log" : "linear", fixedrange: true, range: isLog ? undefined : options.range ?? (layout.barmode ? undefined : aroundOne(series)),
      rangemode: options.fromZero ? "tozero" : isPositive ? "nonnegative" : "normal", ...options.yaxis,
    },
    dragmode: coarse.matches ? false : "zoom",
    ...layout,
    ...options.layout,
  };
}

// Plotly fits an axis only when its values change, and forgets the fitted range of a layout that it replaces.
function kept(plot, layout) {
  for (const name of ["xaxis", "yaxis"]) {
    const [axis, before] = [layout[name], plot.layout?.[name]];
    if (!axis.range && before?.range && before.type === axis.type) Object.assign(axis, { range: [...before.range], autorange: true });
  }
  return layout;
}

// All steps, with a little room for the markers at both ends.
function around(steps) {
  const [first, last] = [Math.min(...steps), Math.max(...steps)];
  const room = 0.012 * (last - first) || 0.5;
  return [first - room, last + room];
}

// From 0 to a single value, which plotly would put in the middle of a range of 2. undefined: there are several values.
function aroundOne(series) {
  const values = new Set(series.flatMap((one) => [...one.y, ...(one.low ?? []), ...(one.high ?? [])]).filter(Number.isFinite));
  if (values.size !== 1) return undefined;
  const [value] = values;
  return value < 0 ? [1.25 * value, 0] : [0, 1.25 * value || 1];
}

// Whole steps only while there are few; plotly chooses the ticks otherwise.
function wholeSteps(series) {
  const steps = series.flatMap((one) => one.x);
  return Math.max(...steps) - Math.min(...steps) < 6 ? 1 : undefined;
}

const titleOf = (text) => (text ? { text, font: { size: 11 }, standoff: 6 } : undefined);
const config = () => ({ displayModeBar: false, responsive: true, displaylogo: false, doubleClick: false });
const formatOf = (options) => options.format ?? ((value) => number(value));

// "Reward: 3 points from step 1 to step 3, first 0.1, last 0.4, lowest 0.1, highest 0.4."
function described(series, options) {
  const format = formatOf(options);
  const sentences = series.map((one) => {
    const values = one.y.filter(isPresent);
    if (!values.length) return `${one.name}: no values.`;
    const [low, high] = [Math.min(...values), Math.max(...values)].map(format);
    return `${one.name}: ${values.length} values, first ${format(values[0])}, last ${format(values.at(-1))}, ` +
      `lowest ${low}, highest ${high}.`;
  });
  return `${options.title}. ${sentences.join(" ")}`;
}

function tableOf(series, options) {
  const format = formatOf(options);
  const rows = new Map();
  series.forEach((one, at) => one.x.forEach((x, index) => {
    rows.set(x, rows.get(x) ?? []);
    rows.get(x)[at] = one.y[index];
  }));
  const head = [options.xTitle ?? "step", ...series.map((one) => one.name)];
  return table(options.title, head, [...rows].map(([x, values]) => el("tr", {}, el("th", { scope: "row" }, String(x)),
    series.map((_, at) => el("td", {}, values[at] === undefined ? "–" : format(values[at]))))), "numbers");
}

// ---- colours of the style sheet

const seriesColor = (at) => token(`--series-${((at - 1) % 8) + 1}`);

const probe = el("span", { hidden: true });

// A colour token of the current theme as `rgb(…)`.
export function token(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

function faded(color, alpha) {
  const [r, g, b] = color.match(/[\d.]+/g);
  return `rgba(${r}, ${g}, ${b}, ${alpha})`;
}

function onTheme(root, draw) {
  const redraw = () => {
    if (root.isConnected) draw();
    else window.removeEventListener("theme-changed", redraw);
  };
  window.addEventListener("theme-changed", redraw);
}

// ---- a line without axes, for tables

// Values (missing ones are skipped) → a small <svg> with `label` for screen readers.
export function sparkline(values, label) {
  const [width, height] = [120, 28];
  const present = values.filter(isPresent);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "sparkline", role: "img", "aria-label": label });
  if (!present.length) return root;
  const [low, high] = [Math.min(...present), Math.max(...present)];
  const across = (at) => 2 + (at * (width - 6)) / Math.max(1, present.length - 1);
  const up = (value) => height - 3 - ((value - low) * (height - 6)) / (high - low || 1);
  const points = present.map((value, at) => [across(at).toFixed(1), up(value).toFixed(1)]);
  const [cx, cy] = points.at(-1);
  root.append(svg("polyline", { points: points.join(" ") }), svg("circle", { cx, cy, r: 2 }));
  return root;
}
