// One job: its status, results, failure, curves, checkpoints, configuration and history.
// Each stream event triggers requests for the job, its newest metrics and its newest events.

import { styled } from "../../address.js";
import { follow, get, jobPath, metricsOf, pause } from "../../api.js";
import { announce, el, failed, loading } from "../../dom.js";
import { isOver } from "../../job_parts.js";
import { Charts } from "./charts.js";
import { Diagnosis } from "./diagnosis.js";
import { Events } from "./events.js";
import { Checkpoints, configuration } from "./files.js";
import { Summary } from "./summary.js";
import { Use } from "./use.js";

const POINTS = 500;
const REST_SECONDS = 1;
const QUIET_SECONDS = 5;
const DIAGNOSIS_MS = 10_000;

export async function show(root, params, signal) {
  const page = new JobPage(params.id, signal);
  loading(root, "Loading the job");
  await Promise.all([styled("job"), page.load()]);
  root.replaceChildren(...page.parts());
  await Promise.all([
    page.charts.update(page.job, page.rows), page.checkpoints.load(page.job), page.use.load(page.job), page.events.load(), page.diagnosis.load(page.job.failure),
  ]);
  if (!isOver(page.job)) await page.stayFresh();
}

class JobPage {
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.rows = [];
  }

  async load() {
    this.job = await get(jobPath(this.id), { signal: this.signal });
    this.rows = await metricsOf(this.id, { points: POINTS, signal: this.signal });
    this.summary = new Summary(this.job, { changed: (job) => this.replace(job), signal: this.signal });
    this.charts = new Charts();
    this.diagnosis = new Diagnosis(this.id, this.signal);
    this.checkpoints = new Checkpoints(this.id, this.signal);
    this.use = new Use(this.id, this.signal);
    this.events = new Events(this.id, this.signal);
  }

  parts() {
    this.trouble = el("div");
    return [
      ...this.summary.parts, this.diagnosis.root, ...this.summary.findings, this.trouble, this.charts.root,
      el("div", { class: "split" }, el("div", { class: "pile" }, this.checkpoints.root, this.use.root, this.summary.cost), configuration(this.job)), this.events.root,
    ];
  }

  replace(job) {
    if (job.status !== this.job.status) announce(`The job is ${job.status}`);
    this.job = job;
    this.summary.update(job);
  }

  // ---- live

  async stayFresh() {
    const bell = new Bell();
    const stop = new AbortController();
    const either = AbortSignal.any([this.signal, stop.signal]);
    const stream = follow(this.id, {
      after: this.events.newest, signal: either, onEvent: () => bell.ring(), onConnection: () => bell.ring(),
    }).catch((error) => (either.aborted ? null : this.failed(error)));
    while (!isOver(this.job)) {
      await bell.heard(QUIET_SECONDS, this.signal);
      await pause(REST_SECONDS, this.signal);
      await this.refresh();
    }
    stop.abort();
    await stream;
  }

  async refresh() {
    try {
      const job = await get(jobPath(this.id), { signal: this.signal });
      await this.readMetrics();
      this.replace(job);
      await Promise.all([this.charts.update(job, this.rows), this.checkpoints.load(job), this.use.load(job), this.events.refresh()]);
      if (isOver(job) || Date.now() - this.diagnosis.readAt > DIAGNOSIS_MS) await this.diagnosis.load(job.failure);
      this.trouble.replaceChildren();
    } catch (error) {
      if (this.signal.aborted) throw error;
      this.failed(error);
    }
  }

  // New rows, and the last one again, because its step's evaluation follows it. All rows, thinned, once there
  // are too many.
  async readMetrics() {
    const isShort = this.rows.length > 0 && this.rows.length < 2 * POINTS;
    const afterStep = isShort ? this.rows.at(-1).step - 1 : undefined;
    const fresh = await metricsOf(this.id, { points: POINTS, afterStep, signal: this.signal });
    const first = fresh[0]?.step ?? Infinity;
    this.rows = [...this.rows.filter((row) => row.step < first), ...fresh];
  }

  failed(error) {
    if (error.status === undefined) console.error(error);
    failed(this.trouble, error);
  }
}

// Remembers stream events until they are handled.
class Bell {
  constructor() {
    this.wasRung = false;
  }

  ring() {
    this.wasRung = true;
    this.wake?.();
  }

  async heard(seconds, signal) {
    const woken = new Promise((resolve) => (this.wake = resolve));
    if (!this.wasRung) await Promise.race([woken, pause(seconds, signal)]);
    this.wasRung = false;
  }
}
