// Try a model: one conversation with two models side by side, the same seed. Their output is untrusted text.

import { replaceQuery, styled } from "../../address.js";
import { get, jobPath } from "../../api.js";
import { announce, button, el, empty, field, heading, loading } from "../../dom.js";
import { modelName, namesOfJobs } from "../../job_names.js";
import { waysToAdd } from "../models/adding.js";
import { Answer } from "./answer.js";
import { samplesOf } from "./samples.js";

const SIDES = ["left", "right"];
const NAMES = { left: "Left", right: "Right" };
const MOST_CHECKPOINTS = 100;
const CHECKPOINT = /:ckpt-step-(\d+)$/;

export async function show(root, params, signal) {
  const box = el("div");
  root.append(heading("Try a model", {
    below: el("p", { class: "hint" }, "Chat with two models side by side, with the same seed. Temperature 0 is greedy, as evaluations are by default."),
  }), box);
  loading(box, "Loading the models");
  const [{ data }, names] = await Promise.all([get("/v1/models", { signal }), namesOfJobs(signal), styled("try")]);
  const named = params.query.get("model");
  if (!data.length && !named) return none(box);
  const models = named && !data.some((model) => model.id === named) ? [...data, await found(named, signal)] : data;
  const page = new TryPage(models, names, params.query, signal);
  box.replaceChildren(...page.parts());
  await Promise.all([page.addCheckpoints(), page.offerSamples()]);
}

// A checkpoint is in no list. If it does not exist, the first answer says so.
function found(id, signal) {
  return get(`/v1/models/${id}`, { signal }).catch((error) => {
    if (signal.aborted) throw error;
    return { id };
  });
}

function none(box) {
  empty(box, "No model yet", "Add one, then come back:", waysToAdd());
}

class TryPage {
  constructor(models, names, query, signal) {
    this.signal = signal;
    this.models = models;
    this.names = names;
    this.listed = new Set();
    const tuned = query.get("model") ?? models.find((model) => model.job_id)?.id ?? "";
    const base = query.get("base") ?? parentOf(tuned, models);
    this.answers = { left: new Answer(), right: new Answer() };
    this.chosen = { left: this.chooser("left", base), right: this.chooser("right", tuned === base ? "" : tuned) };
  }

  parts() {
    return [this.form(), el("div", { class: "answers" }, SIDES.map((side) => this.answers[side].root))];
  }

  // ---- the form

  form() {
    this.prompt = el("textarea", { id: "prompt", rows: 4, required: true, spellcheck: "false", autofocus: true,
      onkeydown: (event) => this.pressed(event) });
    this.system = el("textarea", { id: "system", rows: 2, spellcheck: "false" });
    this.samples = el("div", { class: "row samples" });
    this.send = button("Send", null, { kind: "primary", type: "submit" });
    this.stop = button("Stop", () => this.running?.abort(), { disabled: true });
    this.restart = button("New conversation", () => this.forget(), { kind: "quiet", disabled: true });
    const more = el("details", {}, el("summary", {}, "System prompt and settings"),
      el("div", { class: "more" }, field("System prompt", this.system), this.settings()));
    // an invalid number in there must be visible before the browser can point at it
    more.addEventListener("invalid", () => (more.open = true), true);
    return el("form", { class: "panel", onsubmit: (event) => {
      event.preventDefault();
      this.generate();
    } },
    el("div", { class: "choices" }, SIDES.map((side) => field(NAMES[side], this.chosen[side]))),
    field("Prompt", this.prompt), this.samples, more,
    el("div", { class: "row" }, this.send, this.stop, this.restart,
      el("span", { class: "hint" }, "Ctrl + Enter sends. The first answer waits until the model is loaded.")));
  }

  settings() {
    const numeric = (id, props) => el("input", { id, type: "number", ...props });
    this.temperature = numeric("temperature", { min: 0, max: 2, step: "any", value: 0, required: true });
    this.maxTokens = numeric("max-tokens", { min: 1, step: 1, value: 256, required: true });
    this.seed = numeric("seed", { min: 0, step: 1, value: 1, required: true });
    this.isPlain = el("input", { id: "plain", type: "checkbox" });
    return el("div", { class: "settings" },
      field("Temperature (0 = greedy)", this.temperature), field("Max tokens", this.maxTokens), field("Seed", this.seed),
      el("label", { class: "row", for: "plain" }, this.isPlain, "Plain text, no chat template"));
  }

  chooser(side, chosen) {
    const ids = this.models.map((model) => model.id);
    const listed = chosen && !ids.includes(chosen) ? [chosen, ...ids] : ids;
    return el("select", { id: side, onchange: () => this.rechosen() },
      side === "right" && el("option", { value: "" }, "No second model"),
      listed.map((id) => el("option", { value: id, selected: id === chosen }, this.named(id))));
  }

  // "sort letters · ft:tiny:…": a fine-tuned model's id alone says little.
  named(id) {
    const name = this.names.get(this.jobOf(id));
    return name ? `${name} · ${id}` : id;
  }

  // "sort letters, step 40"
  titleOf(id) {
    return modelName(id, this.names);
  }

  // Another model has not said what the earlier one said: the conversation starts again.
  rechosen() {
    replaceQuery({ base: this.chosen.left.value, model: this.chosen.right.value });
    this.running?.abort();
    this.forget();
    this.addCheckpoints();
    this.offerSamples();
  }

  // Rows of the data of the right model's job, or of the left one's.
  async offerSamples() {
    const job = this.jobOf(this.chosen.right.value) ?? this.jobOf(this.chosen.left.value);
    if (job === this.sampled) return;
    this.sampled = job;
    const buttons = job ? await samplesOf(job, (sample) => this.use(sample), this.signal) : [];
    if (job === this.sampled) this.samples.replaceChildren(...buttons);
  }

  // A row is a question of its own, so the conversation starts again.
  use({ system, prompt }) {
    if (this.running) return;
    this.forget();
    this.system.value = system;
    this.prompt.value = prompt;
    this.send.focus();
  }

  forget() {
    for (const side of SIDES) this.answers[side].clear();
    this.restart.disabled = true;
  }

  // Offers the other checkpoints of the chosen models' jobs on both sides, once for each job.
  async addCheckpoints() {
    for (const side of SIDES) {
      const job = this.jobOf(this.chosen[side].value);
      if (!job || this.listed.has(job)) continue;
      this.listed.add(job);
      const query = { limit: MOST_CHECKPOINTS };
      const page = await get(jobPath(job, "/checkpoints"), { query, signal: this.signal }).catch(() => null);
      if (page) this.offer(job, page.data.map((point) => point.fine_tuned_model_checkpoint));
      else this.listed.delete(job);
    }
  }

  jobOf(id) {
    const find = (wanted) => this.models.find((model) => model.id === wanted);
    return (find(id) ?? find(id.replace(CHECKPOINT, "")))?.job_id;
  }

  offer(job, ids) {
    for (const select of Object.values(this.chosen)) {
      const present = new Set([...select.options].map((option) => option.value));
      const options = ids.filter((id) => !present.has(id)).map((id) => el("option", { value: id }, id));
      if (options.length) select.append(el("optgroup", { label: `Checkpoints of ${this.names.get(job) ?? job}` }, options));
    }
  }

  pressed(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      event.target.form.requestSubmit();
    }
  }

  // ---- requests

  async generate() {
    if (this.running) return;
    this.running = new AbortController();
    const signal = AbortSignal.any([this.signal, this.running.signal]);
    this.send.disabled = true;
    this.stop.disabled = false;
    announce("Generating");
    const chosen = SIDES.filter((side) => this.chosen[side].value);
    const wanted = chosen.map((side) => this.requestFor(this.chosen[side].value));
    const { prompt } = wanted[0];
    if (this.isPlain.checked) this.forget();
    else this.prompt.value = "";
    const complete = await Promise.all(chosen.map((side, at) => this.answers[side].stream(wanted[at], signal)));
    if (!complete.every(Boolean)) this.prompt.value ||= prompt;
    this.running = null;
    this.restart.disabled = false;
    this.send.disabled = false;
    this.stop.disabled = true;
    if (!this.signal.aborted) announce("Done");
  }

  requestFor(model) {
    return {
      model,
      title: this.titleOf(model),
      prompt: this.prompt.value,
      system: this.isPlain.checked ? "" : this.system.value,
      isPlain: this.isPlain.checked,
      temperature: this.temperature.valueAsNumber,
      maxTokens: this.maxTokens.valueAsNumber,
      seed: this.seed.valueAsNumber,
    };
  }
}

// The model that training started from; of a base model, itself.
function parentOf(model, models) {
  const known = models.find((one) => one.id === model);
  return known?.parent ?? (known ?? models.find((one) => !one.job_id) ?? models[0])?.id ?? model;
}
