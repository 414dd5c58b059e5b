// A job's results: checkpoints, weights, metrics, rollouts, each with a download; and its configuration.

import { download, exported, get, jobPath } from "../../api.js";
import { ago, announce, button, bytes, el, empty, number, percent, section, table } from "../../dom.js";
import { downloads } from "./downloads.js";
import { ownMethod } from "../new/draft.js";

export class Checkpoints {
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.box = el("div");
    this.rows = new Map();
    this.files = el("div", { class: "row files" });
    this.root = section("Checkpoints and downloads", this.files, this.box);
  }

  // Reads the list again if there is a new step; `job` determines the other files.
  async load(job) {
    this.offer(job);
    if (this.step === job.progress.step && this.status === job.status) return;
    [this.step, this.status] = [job.progress.step, job.status];
    const page = await get(jobPath(this.id, "/checkpoints"), { query: { limit: 100 }, signal: this.signal });
    this.show(page.data);
  }

  offer(job) {
    const wanted = downloads(job);
    const names = wanted.map((one) => one.label).join();
    if (names === this.offered) return;
    this.offered = names;
    this.files.replaceChildren(...wanted.map((one) =>
      downloadButton(one.label, one.path, one.query, this.signal, undefined, one.isExport)));
  }

  show(checkpoints) {
    if (!checkpoints.length) return empty(this.box, "No checkpoint yet", "A checkpoint is saved every checkpoint_interval steps.");
    const rows = checkpoints.map((one) => this.rowOf(one));
    const measure = checkpoints.some((one) => one.metrics.reward !== undefined) ? "Reward" : "Loss";
    this.box.replaceChildren(table("Checkpoints, newest first", ["Step", measure, "Saved", ""], rows, "tight"));
  }

  // Keeps the row of a checkpoint, as a download may be running in it.
  rowOf(checkpoint) {
    const state = `${checkpoint.id} ${checkpoint.is_best}`;
    if (!this.rows.has(state)) this.rows.set(state, this.row(checkpoint));
    return this.rows.get(state);
  }

  row(checkpoint) {
    const step = checkpoint.step_number;
    const measured = checkpoint.metrics.reward ?? checkpoint.metrics.loss;
    return el("tr", {},
      el("th", { scope: "row" }, number(step), checkpoint.is_best && [" ", el("span", { class: "tag" }, "best")]),
      el("td", {}, number(measured)), el("td", {}, ago(checkpoint.created_at), el("div", { class: "small faint" }, bytes(checkpoint.bytes))),
      el("td", {}, downloadButton("Download",
        jobPath(this.id, `/checkpoints/${checkpoint.id}/content`), {}, this.signal, `Download the checkpoint of step ${step}`)));
  }
}

// The button shows the progress. An export is created first unless it exists.
function downloadButton(label, path, query, signal, title, isExport = false) {
  const problem = el("span", { class: "problem small", role: "alert" });
  const pressed = button(label, async () => {
    pressed.disabled = true;
    problem.textContent = "";
    try {
      const onPhase = (phase) => { pressed.textContent = `${label}: ${phase}`; };
      const place = isExport ? await exported(path, { signal, onPhase }) : path;
      await download(place, { query, signal, onProgress: (fraction, received) => {
        pressed.textContent = fraction === null ? bytes(received) : percent(fraction);
      } });
      announce(`${label}: done`);
    } catch (error) {
      if (!signal.aborted) problem.textContent = error.message;
    }
    pressed.textContent = label;
    pressed.disabled = false;
  }, { kind: "small", "aria-label": title });
  return el("span", { class: "row" }, pressed, problem);
}

// ---- configuration

export function configuration(job) {
  const own = ownMethod(job.method), method = own[own.type];
  const given = { ...method.hyperparameters };
  const rest = Object.fromEntries(Object.entries(method).filter(([name]) => name !== "hyperparameters"));
  const facts = {
    model: job.model, fine_tuned_model: job.fine_tuned_model, training_file: job.training_file,
    validation_file: job.validation_file, validation_split: job.validation_split, seed: job.seed, gpus: job.resources.gpus,
  };
  return section("Configuration", el("div", { class: "panel" },
    factList(facts),
    method.grader && folded(`Grader: ${method.grader.type}`, json(rest)),
    folded(`Hyperparameters (${Object.keys(given).length})`, factList(given)),
    folded("Request as JSON", json({ model: job.model, ...facts, method: own, metadata: job.metadata }))));
}

const folded = (title, ...content) => el("details", {}, el("summary", {}, title), content);
const json = (value) => el("pre", { class: "code" }, JSON.stringify(value, null, 2));

function factList(values) {
  const present = Object.entries(values).filter(([, value]) => value !== null && value !== undefined);
  return el("dl", { class: "facts" }, present.map(([name, value]) =>
    [el("dt", { class: "mono" }, name), el("dd", { class: "mono" }, typeof value === "object" ? JSON.stringify(value) : String(value))]));
}
