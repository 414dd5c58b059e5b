// One job: its results, its main curve and findings, and a tab each for more. Each stream event triggers requests for
// the job, its newest metrics and its newest events.

import { styled } from "../../address.js";
import { ApiError, follow, get, jobPath, metricsOf, pause, serviceBack } from "../../api.js";
import { announce, el, failed, loading } from "../../dom.js";
import { isOver, isTab, jobPages } from "../../job_parts.js";
import { Charts } from "./charts.js";
import { Checkpoints } from "./checkpoints.js";
import { Configuration } from "./configuration.js";
import { Diagnosis } from "./diagnosis.js";
import { History } from "./history.js";
import { Summary } from "./summary.js";
import { Tabs, lazily } from "./tabs.js";

const POINTS = 500;
const MOST_POINTS = 2000; // of zoomed steps
const REST_SECONDS = 1;
const QUIET_SECONDS = 5;
const DIAGNOSIS_MS = 10_000;

export async function show(root, params, signal, onMove) {
  const tab = params.tab ?? "metrics";
  const page = new JobPage(params.id, signal);
  loading(root, "Loading the job");
  await Promise.all([styled("job"), page.load()]);
  if (!isTab(tab, page.job)) throw new ApiError({ status: 404, message: "No page at this address." });
  onMove((next) => page.move(next.tab ?? "metrics"));
  root.replaceChildren(...page.parts());
  await page.tabs.show(tab, page.job);
  const reveal = () => params.tab && tab !== "metrics" && page.tabs.nav.scrollIntoView();
  reveal();
  const place = window.scrollY;
  await page.fill();
  if (window.scrollY === place) reveal(); // what was filled in may have moved the tab
  if (!isOver(page.job)) await page.stayFresh();
}

class JobPage {
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.rows = [];
  }

  async load() {
    this.newRows = this.fetchRows();
    this.newRows.catch(() => {}); // awaited in `fillOnce`
    this.job = await get(jobPath(this.id), { signal: this.signal });
    this.summary = new Summary(this.job, { changed: (job) => this.replace(job), signal: this.signal });
    this.charts = new Charts((first, last) =>
      metricsOf(this.id, { points: MOST_POINTS, afterStep: first - 1, beforeStep: last + 1, signal: this.signal }));
    this.diagnosis = new Diagnosis(this.id, this.signal, (findings) => this.summary.update(this.job, { findings }));
    this.history = new History(this.id, this.signal);
    this.tabs = new Tabs(jobPages(this.job, "metrics"), {
      metrics: this.charts,
      checkpoints: new Checkpoints(this.id, this.signal),
      configuration: new Configuration(this.signal),
      logs: lazily("logs", ({ Logs }) => new Logs(this.id, this.signal)),
      system: lazily("system", ({ System }) => this.withRows(new System())),
      history: this.history,
    }, this.signal);
  }

  // A view of the metric rows, which the first request may still be reading.
  withRows(view) {
    return { root: view.root, load: async (job) => view.load(job, this.rows.length ? this.rows : await this.newRows) };
  }

  parts() {
    this.trouble = el("div");
    return [...this.summary.parts, this.diagnosis.failure, this.trouble, this.charts.main, this.diagnosis.root, this.tabs.nav, this.tabs.root];
  }

  // Loads what is shown below the results; after an outage of the service, tries again.
  async fill() {
    for (let isFilled = false; !isFilled; ) {
      isFilled = await this.fillOnce().then(() => true, (error) => {
        if (this.signal.aborted || error.status !== 0) throw error;
        return false;
      });
      if (!isFilled) await serviceBack(this.signal);
      if (!isFilled) this.newRows = this.fetchRows();
    }
  }

  async fillOnce() {
    this.rows = await this.newRows;
    // not earlier: it reads all metrics, which would delay the rows
    const diagnosis = this.diagnosis.load(this.job).catch((error) => {
      if (this.signal.aborted || error.status === 0) throw error;
      this.failed(error); // the rest of the page needs no findings
    });
    diagnosis.catch(() => {}); // awaited below
    this.summary.update(this.job, { rows: this.rows });
    if (!isOver(this.job)) this.newest = await this.history.newest();
    await Promise.all([diagnosis, this.charts.update(this.job, this.rows)]);
  }

  move(tab) {
    if (!isTab(tab, this.job)) return false;
    this.tabs.show(tab, this.job);
    const { top, bottom } = this.tabs.nav.getBoundingClientRect();
    if (top < 0 || bottom > window.innerHeight) this.tabs.nav.scrollIntoView(); // the link was not one of the tabs
    return true;
  }

  replace(job) {
    if (job.status !== this.job.status) announce(`The job is ${job.status}`);
    this.job = job;
    this.summary.update(job, { rows: this.rows });
  }

  // ---- live

  async stayFresh() {
    const changes = new Changes();
    const stop = new AbortController();
    const either = AbortSignal.any([this.signal, stop.signal]);
    window.addEventListener("service-back", () => changes.note(), { signal: either });
    const stream = follow(this.id, {
      after: this.newest, signal: either, onEvent: () => changes.note(), onConnection: () => changes.note(),
    }).catch((error) => (either.aborted ? null : this.failed(error)));
    while (!isOver(this.job)) {
      await changes.next(QUIET_SECONDS, this.signal);
      await pause(REST_SECONDS, this.signal);
      await this.refresh();
    }
    stop.abort();
    await stream;
  }

  async refresh() {
    try {
      const job = await get(jobPath(this.id), { signal: this.signal });
      this.rows = await this.fetchRows();
      this.replace(job);
      await Promise.all([this.charts.update(job, this.rows), this.tabs.refresh(job)]);
      if (isOver(job) || Date.now() - this.diagnosis.readAt > DIAGNOSIS_MS) await this.diagnosis.load(job);
      this.trouble.replaceChildren();
    } catch (error) {
      if (this.signal.aborted) throw error;
      this.failed(error);
    }
  }

  // New rows, and the last one again, because its step's evaluation follows it. All rows, thinned, once there
  // are too many.
  async fetchRows() {
    const isShort = this.rows.length > 0 && this.rows.length < 2 * POINTS;
    const afterStep = isShort ? this.rows.at(-1).step - 1 : undefined;
    const fresh = await metricsOf(this.id, { points: POINTS, afterStep, signal: this.signal });
    const first = fresh[0]?.step ?? Infinity;
    return [...this.rows.filter((row) => row.step < first), ...fresh];
  }

  // Without a connection the frame's banner says so, and the next refresh follows by the stream.
  failed(error) {
    if (error.status === undefined) console.error(error);
    if (error.status !== 0) failed(this.trouble, error);
  }
}

// Remembers a change of the job until the page is refreshed.
class Changes {
  isPending = false;

  note() {
    this.isPending = true;
    this.wake?.();
  }

  // Resolves after a change, or after some seconds without one.
  async next(seconds, signal) {
    const woken = new Promise((resolve) => (this.wake = resolve));
    if (!this.isPending) await Promise.race([woken, pause(seconds, signal)]);
    this.isPending = false;
  }
}
