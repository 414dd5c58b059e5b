// Base models and the tenant's fine-tuned ones: what they are, whether training them fits, and what to do with them.

import { styled } from "../../address.js";
import { can } from "../../access.js";
import { get } from "../../api.js";
import { ago, el, empty, heading, loading, number, section, table } from "../../dom.js";
import { modelName, namesOfJobs } from "../../job_names.js";
import { waysToAdd } from "./adding.js";

const COLUMNS = ["Model", "Size", "Context", "Family", "Training", "Added", "Actions"];
const WORDS = { true: "fits", false: "does not fit", null: "unknown" };
const UNKNOWN = "–";
const HINT = "Whether it fits compares an estimate for default settings with the memory of the workers.";

export async function show(root, params, signal) {
  const box = el("div", { class: "page-models" });
  root.append(heading("Models", { below: el("p", { class: "hint" }, HINT) }), box);
  loading(box, "Loading models");
  const [, names] = await Promise.all([styled("models"), namesOfJobs(signal)]);
  await draw(box, names, signal);
}

// Drawn again when a model was added.
async function draw(box, names, signal) {
  const { data, hub_models: hub } = await get("/v1/models", { signal });
  const base = data.filter((model) => !model.job_id);
  const tuned = data.filter((model) => model.job_id);
  box.replaceChildren(
    section("Base models", base.length ? list("Base models, by name", base, names) : none("No model yet", "Add one as shown below.")),
    section("Your fine-tuned models", tuned.length
      ? list("Fine-tuned models, newest first", tuned, names)
      : none("No fine-tuned model yet", "A job that succeeds makes one.")),
    section("Add a model", waysToAdd({ hub: hub && can.write, added: () => draw(box, names, signal), signal })));
}

function none(title, hint) {
  const box = el("div");
  empty(box, title, hint);
  return box;
}

const list = (caption, models, names) => table(caption, COLUMNS, models.map((model) => row(model, names)), "models");

function row(model, names) {
  return el("tr", {},
    el("td", { class: "name" }, model.parent ? named(model, names) : model.id),
    cell(size(model.size_bytes)),
    cell(model.context_length ? `${number(model.context_length, 7)} tokens` : UNKNOWN),
    cell(model.family ?? UNKNOWN),
    cell(fits(model.fits)),
    cell(ago(model.created)),
    cell(actions(model)));
}

// A phone leaves out unknown facts.
const cell = (content) => el("td", { class: content === UNKNOWN ? "unknown" : "fact" }, content);

// The job's name, and below it the id that requests use.
function named(model, names) {
  const name = modelName(model.id, names);
  return [el("a", { href: `#/jobs/${model.job_id}` }, name === model.id ? "Job" : name),
    el("div", { class: "small hint" }, "from ", modelName(model.parent, names)), el("code", { class: "small" }, model.id)];
}

function fits({ lora, full }) {
  return lora === null && full === null ? UNKNOWN : el("div", { class: "fits" }, fit("LoRA", lora), fit("Full", full));
}

function fit(kind, fits) {
  return el("div", { class: fits === true ? "small" : "small no" }, `${kind} ${WORDS[fits]}`);
}

function actions(model) {
  const named = encodeURIComponent(model.id);
  const label = (words) => ({ "aria-label": `${words} ${model.id}` });
  return el("div", { class: "links" },
    can.write && el("a", { href: `#/new?patch=${encodeURIComponent(JSON.stringify({ model: model.id }))}`, ...label("New job with") }, "New job"),
    el("a", { href: `#/try?model=${named}`, ...label("Try") }, "Try"));
}

// 10^9 bytes, as model pages and cards of GPUs count.
function size(bytes) {
  if (!bytes) return UNKNOWN;
  const [unit, one] = bytes >= 1e8 ? ["GB", 1e9] : bytes >= 1e5 ? ["MB", 1e6] : ["kB", 1e3];
  return `${number(bytes / one, 2)} ${unit}`;
}
