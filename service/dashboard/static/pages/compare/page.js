// Several jobs on one chart: `#/compare?jobs=a,b&metric=kl`. Below it results and differences.

import { replaceQuery, styled } from "../../address.js";
import { get, jobPath, metricsOf, pause } from "../../api.js";
import { lineChart } from "../../charts.js";
import { announce, button, el, empty, failed, heading, loading, section } from "../../dom.js";
import { isOver, jobName } from "../../job_parts.js";
import { formatOf, labelOf, seriesOf } from "../../metric_names.js";
import { differences, outcomes } from "./tables.js";

const POINTS = 500;
const REFRESH_SECONDS = 4;
const MOST = 8;

export async function show(root, params, signal) {
  const ids = [...new Set((params.query.get("jobs") ?? "").split(",").filter(Boolean))];
  root.append(heading("Compare jobs", { actions: [el("a", { class: "button", href: "#/jobs" }, "Choose jobs")] }));
  const box = root.appendChild(el("div", { class: "compare" }));
  if (!ids.length) return empty(box, "No jobs chosen", "Select two or more jobs in the list, then choose Compare.");
  if (ids.length > MOST) return empty(box, `At most ${MOST} jobs fit on one chart`, `${ids.length} were chosen.`);
  const page = new Comparison(box, ids, params.query.get("metric"), signal);
  loading(box, "Loading the jobs");
  await Promise.all([styled("compare"), page.load()]);
  await page.show();
  await page.stayFresh();
}

class Comparison {
  constructor(box, ids, metric, signal) {
    this.box = box;
    this.ids = ids;
    this.metric = metric;
    this.signal = signal;
    this.runs = [];
    this.trouble = el("div");
    this.choice = el("select", { id: "metric", onchange: (event) => this.choose(event.target.value) });
    this.tables = el("div", { class: "tables" });
  }

  // Each job with its rows; unreadable jobs are returned separately.
  async load() {
    const runs = await Promise.all(this.ids.map((id, at) => this.read(id, at + 1)));
    this.runs = runs.filter((run) => run.job);
    const missing = runs.filter((run) => run.error);
    this.trouble.replaceChildren();
    if (missing.length) {
      failed(this.trouble, { ...missing[0].error, message: missing.map((run) => `${run.id}: ${run.error.message}`).join(" ") });
    }
  }

  async read(id, color) {
    try {
      const job = await get(jobPath(id), { signal: this.signal });
      return { id, job, color, rows: await metricsOf(id, { points: POINTS, signal: this.signal }) };
    } catch (error) {
      if (this.signal.aborted || error.status === undefined) throw error;
      return { id, error };
    }
  }

  async show() {
    if (!this.runs.length) return this.box.replaceChildren(this.trouble);
    this.box.replaceChildren(this.trouble,
      el("div", { class: "row" }, el("label", { for: "metric" }, "Metric"), this.choice), this.tables);
    this.metric ??= this.names().find((name) => name === "reward") ?? this.names().find((name) => name === "loss");
    await this.update();
  }

  names() {
    const found = new Set(this.runs.flatMap((run) => run.rows.flatMap(Object.keys)));
    found.delete("step");
    return [...found].sort();
  }

  async choose(metric) {
    this.metric = metric;
    replaceQuery({ metric });
    announce(`${labelOf(metric)} is shown`);
    await this.draw();
  }

  async update() {
    const names = this.names();
    if (this.offered !== names.join()) {
      this.offered = names.join();
      this.choice.replaceChildren(...names.map((name) => el("option", { value: name, selected: name === this.metric }, name)));
    }
    this.tables.replaceChildren(
      section("Results per job", outcomes(this.runs, (id) => this.without(id))),
      section("Different settings", differences(this.runs)));
    await this.draw();
  }

  // A chart per metric, because its title and format depend on the metric.
  async draw() {
    if (this.drawn !== this.metric) {
      this.chart?.root.remove();
      this.drawn = this.metric;
      this.chart = lineChart({
        title: labelOf(this.metric ?? "No metric"), format: formatOf(this.metric ?? ""), xTitle: "step", height: 380,
      });
      this.tables.before(this.chart.root);
    }
    const present = this.runs.filter((run) => run.rows.some((row) => row[this.metric] !== undefined));
    this.chart.root.hidden = !present.length;
    const markers = this.metric?.startsWith("eval/");
    await this.chart.update(present.map((run) =>
      seriesOf(run.rows, this.metric, { name: jobName(run.job), color: run.color, markers })));
  }

  without(id) {
    location.hash = `#/compare?jobs=${this.ids.filter((other) => other !== id).join(",")}`;
  }

  async stayFresh() {
    while (this.runs.some((run) => !isOver(run.job))) {
      await pause(REFRESH_SECONDS, this.signal);
      if (document.hidden) continue;
      await this.load();
      if (this.runs.length) await this.update();
    }
  }
}
