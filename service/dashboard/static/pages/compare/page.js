// Several jobs side by side: `#/compare?jobs=a,b&metrics=reward,kl`. Results and differences, then a chart a metric.

import { replaceQuery, styled } from "../../address.js";
import { get, jobPath, metricsOf, pause } from "../../api.js";
import { ChartGroup } from "../../chart_group.js";
import { lineChart } from "../../charts.js";
import { announce, el, empty, failed, heading, loading, section } from "../../dom.js";
import { isOver, jobName } from "../../job_parts.js";
import { metricLabel } from "../../labels.js";
import { formatOf, valuesOf } from "../../metric_names.js";
import { differences, outcomes } from "./tables.js";

const POINTS = 500;
const REFRESH_SECONDS = 4;
const MOST = 8;
const MOST_METRICS = 6;
const FIRST = ["reward", "eval/reward", "kl", "completions/mean_length"];
const FIRST_SUPERVISED = ["loss", "eval/loss"];

export async function show(root, params, signal) {
  const ids = [...new Set((params.query.get("jobs") ?? "").split(",").filter(Boolean))];
  root.append(heading("Compare jobs", { actions: [el("a", { class: "button", href: "#/jobs" }, "Choose jobs")] }));
  const box = root.appendChild(el("div", { class: "compare" }));
  if (!ids.length) return empty(box, "No jobs chosen", "Select two or more jobs in the list, then choose Compare.");
  if (ids.length > MOST) return empty(box, `At most ${MOST} jobs can be compared`, `${ids.length} were chosen.`);
  const wanted = (params.query.get("metrics") ?? "").split(",").filter(Boolean);
  const page = new Comparison(box, ids, wanted.slice(0, MOST_METRICS), signal);
  loading(box, "Loading the jobs");
  await Promise.all([styled("compare"), page.load()]);
  await page.show();
  await page.stayFresh();
}

class Comparison {
  constructor(box, ids, metrics, signal) {
    this.box = box;
    this.ids = ids;
    this.metrics = metrics;
    this.signal = signal;
    this.runs = [];
    this.charts = new Map();
    this.group = new ChartGroup();
    this.trouble = el("div");
    this.tables = el("div", { class: "tables" });
    this.grid = el("div", { class: "charts" });
    this.boxes = el("div", { class: "metrics" });
    this.count = el("span", { class: "faint" });
    this.choice = el("details", { class: "choice" }, el("summary", {}, "Metrics ", this.count), this.boxes);
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

  // A job that was shown already stays as it was while the service does not respond.
  async read(id, color) {
    try {
      const job = await get(jobPath(id), { signal: this.signal });
      return { id, job, color, rows: await metricsOf(id, { points: POINTS, signal: this.signal }) };
    } catch (error) {
      const known = this.runs.find((run) => run.id === id);
      if (this.signal.aborted || error.status === undefined || (error.status === 0 && !known)) throw error;
      return known && error.status !== 404 ? known : { id, error };
    }
  }

  async show() {
    if (!this.runs.length) return this.box.replaceChildren(this.trouble);
    if (!this.metrics.length) {
      const names = this.names();
      const wanted = names.includes("reward") ? FIRST : FIRST_SUPERVISED;
      this.metrics = wanted.filter((name) => names.includes(name));
    }
    const charts = section("Curves", el("div", { class: "row controls" }, this.choice, this.group.root), this.grid);
    this.box.replaceChildren(this.trouble, this.tables, charts);
    await this.update();
  }

  names() {
    const found = new Set(this.runs.flatMap((run) => run.rows.flatMap(Object.keys)));
    found.delete("step");
    return [...found].sort();
  }

  async update() {
    this.offer();
    this.tables.replaceChildren(
      section("Results per job", outcomes(this.runs, (id) => this.without(id))),
      section("Different settings", differences(this.runs)));
    await this.draw();
  }

  // ---- metrics

  offer() {
    const names = this.names();
    const isFull = this.metrics.length >= MOST_METRICS;
    this.count.textContent = `${this.metrics.length} of at most ${MOST_METRICS}`;
    if (this.offered !== names.join()) {
      this.offered = names.join();
      this.boxes.replaceChildren(...names.map((name) => el("label", {}, el("input", {
        type: "checkbox", value: name, onchange: (event) => this.choose(name, event.target.checked),
      }), metricLabel(name))));
    }
    for (const input of this.boxes.querySelectorAll("input")) {
      input.checked = this.metrics.includes(input.value);
      input.disabled = isFull && !input.checked;
    }
  }

  async choose(name, isChosen) {
    this.metrics = isChosen ? [...this.metrics, name] : this.metrics.filter((other) => other !== name);
    replaceQuery({ metrics: this.metrics.join(",") });
    this.offer();
    announce(`${metricLabel(name)} is ${isChosen ? "shown" : "removed"}`);
    await this.draw();
  }

  async draw() {
    for (const [name, chart] of this.charts) {
      if (this.metrics.includes(name)) continue;
      chart.root.remove();
      this.group.charts.delete(chart);
      this.charts.delete(name);
    }
    await Promise.all(this.metrics.map((name) => this.drawMetric(name)));
  }

  async drawMetric(name) {
    const runs = this.runs.filter((run) => run.rows.some((row) => row[name] !== undefined));
    if (!runs.length) return;
    if (!this.charts.has(name)) {
      const chart = lineChart({ title: metricLabel(name), format: formatOf(name), xTitle: "step", height: 240, group: this.group });
      this.charts.set(name, chart);
      this.grid.append(chart.root);
    }
    await this.charts.get(name).update(runs.map((run) =>
      valuesOf(run.job, run.rows, name, { name: jobName(run.job), color: run.color })));
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
