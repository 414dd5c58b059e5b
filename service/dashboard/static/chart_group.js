// Charts that share their settings (kept in this browser), their zoom, and the step under the pointer.

import { button, el, isPresent } from "./dom.js";

const STORED = "grpo.charts";
const DEFAULTS = { smoothing: 0, isLog: false };

export class ChartGroup {
  constructor() {
    this.charts = new Set();
    this.range = null; // [first, last] step; null: all steps
    this.onZoom = null; // called with the new range
    this.settings = { ...DEFAULTS, ...JSON.parse(localStorage.getItem(STORED) ?? "{}") };
    this.value = el("output", {}, shown(this.settings.smoothing));
    this.reset = button("Reset zoom", () => this.zoom(null), { kind: "small", hidden: true });
    this.root = el("div", { class: "chart-settings" }, this.reset,
      el("label", {}, "Smoothing", el("input", {
        type: "range", min: 0, max: 0.99, step: 0.01, value: this.settings.smoothing,
        oninput: (event) => this.change({ smoothing: Number(event.target.value) }),
      }), this.value),
      el("label", {}, el("input", {
        type: "checkbox", checked: this.settings.isLog, onchange: (event) => this.change({ isLog: event.target.checked }),
      }), "Log scale"));
  }

  // chart: {draw(), showAt(step or null)}
  add(chart) {
    this.charts.add(chart);
  }

  change(settings) {
    Object.assign(this.settings, settings);
    this.value.textContent = shown(this.settings.smoothing);
    localStorage.setItem(STORED, JSON.stringify(this.settings));
    return this.redraw();
  }

  zoom(range) {
    this.range = range;
    this.reset.hidden = !range;
    this.onZoom?.(range);
    return this.redraw();
  }

  // A change during a redraw leads to one more, not to one for each change.
  async redraw() {
    this.isStale = true;
    if (this.isDrawing) return;
    this.isDrawing = true;
    try {
      while (this.isStale) {
        this.isStale = false;
        for (const chart of this.charts) await chart.draw();
      }
    } finally {
      this.isDrawing = false; // after a failure, such as of loading the library, the next change tries again
    }
  }

  point(step) {
    for (const chart of this.charts) chart.showAt(step);
  }
}

const shown = (smoothing) => smoothing.toFixed(2);

// The exponential moving average of W&B and TensorBoard: without the bias towards the first value. null stays null.
export function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0, count = 0;
  return values.map((value) => {
    if (!isPresent(value)) return value;
    sum = weight * sum + (1 - weight) * value;
    count += 1;
    return sum / (1 - weight ** count);
  });
}

// A series' points inside of `range` with a neighbour on each side, so that the axis fits what is visible.
export function within(series, range) {
  if (!range) return series;
  const first = Math.max(0, series.x.findIndex((x) => x >= range[0]) - 1);
  const after = series.x.findIndex((x) => x > range[1]);
  const last = after < 0 ? series.x.length : after + 1;
  const cut = (values) => (Array.isArray(values) ? values.slice(first, last) : values);
  return { ...series, x: cut(series.x), y: cut(series.y), low: cut(series.low), high: cut(series.high), text: cut(series.text) };
}
