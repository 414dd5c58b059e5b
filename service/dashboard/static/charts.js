// Charts: a thin wrapper around plotly.js, which is loaded with the first chart.
// A chart is a <figure>: title and newest value, the drawing with a sentence for screen readers, and a table of
// the same numbers. Boundary: series in, drawing out; pages choose the metrics.
// A series: {name, x: [], y: [], low: [], high: [], color: 1…8, dash: "dot", text: [], markers: true}.

import { el, number, svg, table } from "./dom.js";

const calm = window.matchMedia("(prefers-reduced-motion: reduce)");
const coarse = window.matchMedia("(pointer: coarse)");
const MARKED = 60; // more dots than this hide the line
let library = null;

// The global Plotly, loaded once.
export function plotly() {
  library ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL("./vendor/plotly.min.js", import.meta.url).href;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => reject(new Error("The chart library could not be loaded."));
    document.head.append(script);
  });
  return library;
}

// Lines over steps, a band where a series has `low` and `high`. → {root, update(series), ready}
// options: {title, describe: (series) → sentence, format: (y) → text, xTitle, range: [low, high], height}
export function lineChart(options) {
  return figure(options, (series) => series.flatMap((one, at) => lineTraces(one, at)), {});
}

// Bars; several series stack unless `grouped`. The same options and series.
export function barChart(options) {
  const mode = options.grouped ? "group" : "stack";
  return figure(options, (series) => series.map(barTrace), { barmode: mode, bargap: 0.15 });
}

function figure(options, traces, layout) {
  const value = el("span", { class: "newest" });
  const plot = el("div", { class: "plot", role: "img" });
  const numbers = el("div");
  const details = el("details", {}, el("summary", {}, "Show as table"), numbers);
  const root = el("figure", { class: "chart" },
    el("figcaption", {}, el("span", {}, options.title), value), plot, details);
  if (options.height) plot.style.height = `${options.height}px`;
  let series = [];
  const fillTable = () => details.open && numbers.replaceChildren(tableOf(series, options));
  details.addEventListener("toggle", fillTable);
  const draw = async () => {
    const library = await plotly();
    if (!root.isConnected || !series.length) return;
    await library.react(plot, traces(series), { ...layoutOf(options, series), ...layout }, config());
  };
  onTheme(root, draw);
  const chart = { root, plot, ready: Promise.resolve() };
  chart.update = (next) => {
    series = next;
    const newest = series.length === 1 ? series[0].y.findLast((y) => y !== null && y !== undefined) : undefined;
    value.textContent = newest === undefined ? "" : formatOf(options)(newest);
    plot.setAttribute("aria-label", (options.describe ?? described)(series, options));
    fillTable();
    return (chart.ready = draw());
  };
  return chart;
}

function lineTraces(series, at) {
  const color = seriesColor(series.color ?? at + 1);
  const x = series.x;
  const line = {
    type: "scatter", mode: (series.markers && x.length <= MARKED) || x.length < 2 ? "lines+markers" : "lines", name: series.name,
    x, y: series.y, text: series.text, connectgaps: true, hovertemplate: series.hover,
    line: { color, width: 1.75, dash: series.dash }, marker: { size: 5, color },
  };
  if (!series.low) return [line];
  const edge = { type: "scatter", mode: "lines", x, line: { width: 0 }, hoverinfo: "skip", showlegend: false };
  const band = { ...edge, y: series.high, fill: "tonexty", fillcolor: faded(color, 0.16), name: `${series.name} ±` };
  return [{ ...edge, y: series.low }, band, line];
}

function barTrace(series, at) {
  const color = seriesColor(series.color ?? at + 1);
  return {
    type: "bar", name: series.name, x: series.x, y: series.y, text: series.text, hovertemplate: series.hover,
    marker: { color: series.colors ?? color, line: { width: 0 } }, textposition: "outside", cliponaxis: false,
  };
}

function layoutOf(options, series) {
  const ink = token("--ink-2");
  const axis = {
    gridcolor: token("--line"), zerolinecolor: token("--line-2"), linecolor: token("--line-2"),
    tickfont: { color: ink, size: 11 }, automargin: true, nticks: 6, fixedrange: coarse.matches,
  };
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, color: ink, size: 11 },
    margin: { l: 8, r: 10, t: 6, b: 8 }, autosize: true, hovermode: "x unified",
    hoverlabel: { bgcolor: token("--panel"), bordercolor: token("--line-2"), font: { color: token("--ink"), size: 12 } },
    showlegend: series.length > 1,
    legend: { orientation: "h", traceorder: "normal", x: 0, y: -0.12, yanchor: "top", font: { size: 11 }, itemwidth: 30 },
    xaxis: { ...axis, showgrid: false, zeroline: false, title: titleOf(options.xTitle), dtick: wholeSteps(series), ...options.xaxis },
    yaxis: { ...axis, range: options.range, rangemode: options.fromZero ? "tozero" : "normal", ...options.yaxis },
    transition: calm.matches ? undefined : { duration: 0 },
    dragmode: coarse.matches ? false : "zoom",
    ...options.layout,
  };
}

// Whole steps only while there are few; plotly chooses the ticks otherwise.
function wholeSteps(series) {
  const steps = series.flatMap((one) => one.x);
  return Math.max(...steps) - Math.min(...steps) < 6 ? 1 : undefined;
}

const titleOf = (text) => (text ? { text, font: { size: 11 }, standoff: 6 } : undefined);
const config = () => ({ displayModeBar: false, responsive: true, displaylogo: false, doubleClick: "reset" });
const formatOf = (options) => options.format ?? ((value) => number(value));

// "Reward: 3 points from step 1 to step 3, first 0.1, last 0.4, lowest 0.1, highest 0.4."
function described(series, options) {
  const format = formatOf(options);
  const sentences = series.map((one) => {
    const values = one.y.filter((y) => y !== null && y !== undefined);
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

export const seriesColor = (at) => token(`--series-${((at - 1) % 8) + 1}`);

const probe = el("span", { hidden: true });

// A colour token of the current theme as `rgb(…)`.
export function token(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

export function faded(color, alpha) {
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
export function sparkline(values, label, { width = 120, height = 28 } = {}) {
  const present = values.filter((value) => value !== null && value !== undefined);
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
