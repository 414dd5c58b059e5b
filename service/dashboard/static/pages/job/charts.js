// A job's curves: those of `metric_names.js` for which it has metrics, and any other metric on request.

import { barChart, lineChart } from "../../charts.js";
import { el, empty, section } from "../../dom.js";
import { isOver } from "../../job_parts.js";
import { CHARTS, formatOf, labelOf, seriesOf } from "../../metric_names.js";

export class Charts {
  constructor() {
    this.drawn = new Map();
    this.grid = el("div", { class: "grid charts" });
    this.choice = el("select", { id: "metric", onchange: (event) => this.choose(event.target.value) });
    this.chooser = el("div", { class: "row" }, el("label", { for: "metric" }, "Another metric"), this.choice);
    this.extra = el("div", { class: "grid charts" });
    this.nothing = el("div");
    this.root = section("Curves", this.nothing, this.grid, this.chooser, this.extra);
    this.chosen = "";
  }

  // → a promise that resolves when everything is drawn.
  update(job, rows) {
    this.job = job;
    this.rows = rows;
    const names = new Set(rows.flatMap(Object.keys));
    names.delete("step");
    this.chooser.hidden = !names.size;
    if (!names.size) return this.showNothing();
    this.nothing.replaceChildren();
    this.offer(names);
    const drawings = CHARTS.map((spec) => this.draw(spec, spec.series(rows, names, this.job.eval)));
    return Promise.all([...drawings, this.drawChosen()]);
  }

  draw(spec, series) {
    if (!series.length) return null;
    if (!this.drawn.has(spec.title)) {
      const chart = (spec.bars ? barChart : lineChart)(spec);
      chart.root.classList.toggle("wide", Boolean(spec.isWide));
      if (spec.hint) chart.plot.after(el("p", { class: "hint" }, spec.hint));
      this.drawn.set(spec.title, chart);
      this.grid.replaceChildren(...CHARTS.flatMap((one) => this.drawn.get(one.title)?.root ?? []));
    }
    return this.drawn.get(spec.title).update(series);
  }

  offer(names) {
    const sorted = [...names].sort();
    if (this.offered === sorted.join()) return;
    this.offered = sorted.join();
    this.choice.replaceChildren(el("option", { value: "" }, "Choose…"),
      ...sorted.map((name) => el("option", { value: name, selected: name === this.chosen }, name)));
  }

  choose(name) {
    this.chosen = name;
    this.other = name && lineChart({ title: labelOf(name), format: formatOf(name) });
    this.extra.replaceChildren(...(name ? [this.other.root] : []));
    this.drawChosen();
  }

  drawChosen() {
    return this.chosen ? this.other.update([seriesOf(this.rows, this.chosen)]) : null;
  }

  showNothing() {
    const hint = isOver(this.job) ? "The job ended before its first step." : "Metrics appear with the first step.";
    empty(this.nothing, "No metrics yet", hint);
  }
}
