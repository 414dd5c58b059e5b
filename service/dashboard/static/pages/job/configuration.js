// What a job was created with: model, files, settings, grader; and its expected and actual cost.

import { el, isPresent, section } from "../../dom.js";
import { settingLabel, settingValue } from "../../labels.js";
import { ownMethod } from "../new/draft.js";
import { cost } from "./cost.js";
import { fileLink } from "./lineage.js";

export class Configuration {
  constructor(signal) {
    this.signal = signal;
    this.cost = el("div");
    this.root = el("div", { class: "split" });
  }

  load(job) {
    this.cost.replaceChildren(...cost(job));
    if (this.isLoaded) return;
    this.isLoaded = true;
    const own = ownMethod(job.method), method = own[own.type];
    const given = { ...method.hyperparameters };
    const rest = Object.fromEntries(Object.entries(method).filter(([name]) => name !== "hyperparameters"));
    const facts = { model: job.model, fine_tuned_model: job.fine_tuned_model, validation_split: job.validation_split, seed: job.seed, gpus: job.resources.gpus };
    const files = { training_file: job.training_file, validation_file: job.validation_file };
    this.root.replaceChildren(
      el("div", { class: "pile" }, section("Job", el("div", { class: "panel" }, factList({ ...facts, ...this.links(files) }),
        method.grader && folded(`Grader: ${method.grader.type}`, json(rest)),
        folded("Request as JSON", json({ model: job.model, ...facts, ...files, method: own, metadata: job.metadata })))), this.cost),
      section("Hyperparameters", el("div", { class: "panel" }, factList(given))));
  }

  links(files) {
    return Object.fromEntries(Object.entries(files).filter(([, id]) => id).map(([name, id]) => [name, fileLink(id, this.signal)]));
  }
}

const folded = (title, ...content) => el("details", {}, el("summary", {}, title), content);
const json = (value) => el("pre", { class: "code", tabindex: 0 }, JSON.stringify(value, null, 2));

function factList(values) {
  const present = Object.entries(values).filter(([, value]) => isPresent(value));
  return el("dl", { class: "facts" }, present.map(([name, value]) =>
    [el("dt", { title: name }, settingLabel(name)), el("dd", {}, value instanceof Node ? value : settingValue(value))]));
}
