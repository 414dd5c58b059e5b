// A job's results: checkpoints, weights, metrics, rollouts, each with a download; and the commands that use them.

import { can } from "../../access.js";
import { get, jobPath } from "../../api.js";
import { ago, bytes, decimals, el, empty, number, section, table } from "../../dom.js";
import { downloadButton } from "../../download_button.js";
import { heldOutName } from "../../metric_names.js";
import { downloads } from "./downloads.js";
import { Use } from "./use.js";

export class Checkpoints {
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.box = el("div");
    this.rows = new Map();
    this.files = el("div", { class: "row files" });
    this.use = new Use(id, signal);
    this.root = el("div", { class: "pile" }, section("Checkpoints", this.box),
      can.browse && [section("Downloads", this.files), this.use.root]);
  }

  // Reads the list again if there is a new step; `job` determines the other files.
  async load(job) {
    this.offer(job);
    if (this.step === job.progress.step && this.status === job.status) return;
    const page = await get(jobPath(this.id, "/checkpoints"), { query: { limit: 100 }, signal: this.signal });
    [this.step, this.status] = [job.progress.step, job.status];
    this.show(page.data, job.eval);
    if (can.browse) await this.use.load(job);
  }

  offer(job) {
    const wanted = downloads(job).filter((one) => can.write || !one.isExport);
    const names = wanted.map((one) => one.label).join();
    if (names === this.offered) return;
    this.offered = names;
    this.files.replaceChildren(...wanted.map((one) =>
      downloadButton(one.label, one.path, this.signal, one)));
  }

  show(checkpoints, evaluated) {
    if (!checkpoints.length) return empty(this.box, "No checkpoint yet", "Checkpoints appear while the job runs, and at its end.");
    const measure = checkpoints.some((one) => one.metrics.reward !== undefined) ? "reward" : "loss";
    const heldOut = `eval/${measure}`;
    const isEvaluated = checkpoints.some((one) => one.metrics[heldOut] !== undefined);
    const columns = [isEvaluated && heldOutName(evaluated.last, `Held-out ${measure}`), `Training ${measure}`].filter(Boolean);
    const rows = checkpoints.map((one) => this.rowOf(one, isEvaluated ? [heldOut, measure] : [measure]));
    this.box.replaceChildren(table("Checkpoints, newest first", ["Step", ...columns, "Saved", "Size", ""], rows, "tight cards"));
  }

  // Keeps the row of a checkpoint, as a download may be running in it.
  rowOf(checkpoint, measures) {
    const state = JSON.stringify([checkpoint.id, checkpoint.is_best, measures, checkpoint.metrics]);
    if (!this.rows.has(state)) this.rows.set(state, this.row(checkpoint, measures));
    return this.rows.get(state);
  }

  row(checkpoint, measures) {
    const step = checkpoint.step_number;
    return el("tr", { class: checkpoint.is_best ? "best" : "" },
      el("th", { scope: "row" }, number(step, 7), checkpoint.is_best && [" ", el("span", { class: "badge succeeded" }, "best")]),
      measures.map((name) => el("td", {}, decimals(checkpoint.metrics[name]))),
      el("td", {}, ago(checkpoint.created_at)), el("td", {}, bytes(checkpoint.bytes)),
      el("td", {}, can.browse && downloadButton("Download",
        jobPath(this.id, `/checkpoints/${checkpoint.id}/content`), this.signal, { title: `Download the checkpoint of step ${step}` })));
  }
}
