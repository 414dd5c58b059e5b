// A job's curves: the first of `metric_names.js` that it has metrics for is the large one, the others and any other
// metric on request are in the tab of metrics.

import { ChartGroup } from "../../chart_group.js";
import { barChart, lineChart } from "../../charts.js";
import { el, empty } from "../../dom.js";
import { isOver } from "../../job_parts.js";
import { metricLabel } from "../../labels.js";
import { CHARTS, formatOf, seriesOf } from "../../metric_names.js";

const HEIGHT = 320;

export class Charts {
  // `rowsIn(first, last)`: rows between two steps, of which `update` gets only some if there are many.
  constructor(rowsIn) {
    this.rowsIn = rowsIn;
    this.group = new ChartGroup();
    this.group.onZoom = (range) => this.refine(range);
    this.detail = null; // {first, rows}: all rows from a step on, of the steps that are zoomed in
    this.drawn = new Map();
    this.main = el("section", { class: "main-chart waiting", "aria-label": "Curve" });
    this.grid = el("div", { class: "grid charts" });
    this.choice = el("select", { id: "metric", onchange: (event) => this.choose(event.target.value) });
    this.chooser = el("div", { class: "row" }, el("label", { for: "metric" }, "Another metric"), this.choice);
    this.extra = el("div", { class: "grid charts" });
    this.root = el("div", { class: "pile" }, this.grid, this.chooser, this.extra);
    this.chosen = "";
    this.rows = [];
  }

  // → a promise that resolves when everything is drawn.
  async update(job, overview) {
    this.job = job;
    this.overview = overview;
    const rows = (this.rows = withDetail(overview, this.detail));
    const names = new Set(rows.flatMap(Object.keys));
    names.delete("step");
    this.chooser.hidden = !names.size;
    this.main.classList.remove("waiting");
    if (!names.size) return this.showNothing();
    this.offer(names);
    const present = CHARTS.map((spec) => [spec, spec.series(rows, names, job.eval, job)]).filter(([, series]) => series.length);
    this.place(present.map(([spec]) => spec));
    for (const [spec, series] of present) {
      await this.drawn.get(spec).update(series);
      await new Promise((done) => setTimeout(done)); // the page stays responsive between two charts
    }
    await this.drawChosen();
  }

  // All rows of the zoomed steps, in place of every n-th. Without them the overview stays.
  async refine(range) {
    const [first, last] = range ? [Math.max(0, Math.floor(range[0])), Math.ceil(range[1])] : [];
    const wanted = (this.wanted = range && `${first} ${last}`);
    const isThinned = this.overview.filter(({ step }) => step >= first && step <= last).length < last - first;
    const rows = range && isThinned ? await this.rowsIn(first, last).catch(() => null) : null;
    if (wanted !== this.wanted || (!rows && !this.detail)) return;
    this.detail = rows && { first, rows };
    await this.update(this.job, this.overview);
  }

  // Draws what was updated while its tab was not shown.
  async load() {
    for (const chart of this.group.charts) if (chart.isStale) await chart.draw();
  }

  // The charts in their order; those that are new get their elements.
  place(specs) {
    const [main, ...others] = specs;
    if (specs.every((spec) => this.drawn.has(spec)) && this.drawn.get(main)?.root.parentNode === this.main) return;
    for (const spec of specs) if (!this.drawn.has(spec)) this.drawn.set(spec, this.make(spec, spec === main));
    this.main.replaceChildren(...(main ? [this.drawn.get(main).root] : []));
    this.grid.replaceChildren(...others.map((spec) => this.drawn.get(spec).root));
  }

  make(spec, isMain) {
    const chart = (spec.bars ? barChart : lineChart)({ ...spec, group: this.group, height: isMain ? HEIGHT : undefined });
    if (spec.hint) chart.plot.after(el("p", { class: "hint" }, spec.hint));
    if (isMain) chart.root.querySelector("figcaption").append(this.group.root);
    return chart;
  }

  offer(names) {
    const sorted = [...names].sort();
    if (this.offered === sorted.join()) return;
    this.offered = sorted.join();
    this.choice.replaceChildren(el("option", { value: "" }, "Choose…"),
      ...sorted.map((name) => el("option", { value: name, selected: name === this.chosen }, metricLabel(name))));
  }

  choose(name) {
    this.chosen = name;
    this.other = name && lineChart({ title: metricLabel(name), format: formatOf(name), group: this.group });
    this.extra.replaceChildren(...(name ? [this.other.root] : []));
    return this.drawChosen();
  }

  drawChosen() {
    return this.chosen ? this.other.update([seriesOf(this.rows, this.chosen)]) : null;
  }

  showNothing() {
    const hint = isOver(this.job) ? "The job ended before its first step." : null;
    empty(this.main, "No metrics yet", hint);
  }
}

function withDetail(overview, detail) {
  if (!detail) return overview;
  const last = detail.rows.at(-1)?.step ?? -1; // later steps of a running job are in the overview only
  const rows = overview.filter(({ step }) => step < detail.first || step > last);
  return [...rows, ...detail.rows].sort((one, other) => one.step - other.step);
}
