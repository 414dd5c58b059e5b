// A job's environments, and its use of its machine over its steps: CPU, memory, GPU, speed; current and peak values.

import { lineChart } from "../../charts.js";
import { el, empty, number } from "../../dom.js";
import { isOver } from "../../job_parts.js";
import { seriesOf } from "../../metric_names.js";
import { environments } from "./environments.js";

const percent = (value) => `${number(value, 3)} %`;
const gigabytes = (value) => `${number(value, 3)} GB`;
const CHARTS = [
  { title: "CPU", name: "system/cpu_percent", format: percent, hint: "100 % is one busy core." },
  { title: "Memory", name: "system/memory_gb", format: gigabytes },
  { title: "GPU", name: "system/gpu_percent", format: percent },
  { title: "GPU memory", name: "system/gpu_memory_gb", format: gigabytes },
  { title: "Tokens per second", name: "system/tokens_per_second", format: (value) => number(value, 3), hint: "All phases of a step together." },
];

export class System {
  constructor() {
    this.drawn = new Map();
    this.environments = el("div", { class: "environments" });
    this.nothing = el("div");
    this.figures = el("dl", { class: "system-now" });
    this.grid = el("div", { class: "grid charts" });
    this.root = el("div", { class: "system" }, this.environments, this.nothing, this.figures, this.grid);
  }

  // `rows`: the job's metrics. → a promise that resolves when everything is drawn.
  async load(job, rows) {
    this.environments.replaceChildren(...[environments(job, rows)].filter(Boolean));
    const found = CHARTS.map((chart) => ({ ...chart, series: seriesOf(rows, chart.name, { name: chart.title }) }))
      .filter((chart) => chart.series.y.length);
    this.figures.replaceChildren(...found.flatMap((chart) => this.now(job, chart)));
    if (!found.length) {
      return empty(this.nothing, "No measurements", isOver(job) ? "This job recorded none." : "They appear with the first step.");
    }
    this.nothing.replaceChildren();
    const charts = found.map((chart) => this.chart(chart));
    this.grid.replaceChildren(...charts.map((chart) => chart.root));
    await Promise.all(charts.map((chart, at) => chart.update([found[at].series])));
  }

  now(job, { title, format, series: { y } }) {
    const peak = y.reduce((most, value) => Math.max(most, value));
    return [el("dt", {}, title), el("dd", {}, `${format(y.at(-1))} ${isOver(job) ? "last" : "now"}, ${format(peak)} peak`)];
  }

  chart({ title, format, hint }) {
    if (!this.drawn.has(title)) {
      const chart = lineChart({ title, format, fromZero: true, xTitle: "step" });
      if (hint) chart.plot.after(el("p", { class: "hint" }, hint));
      this.drawn.set(title, chart);
    }
    return this.drawn.get(title);
  }
}
