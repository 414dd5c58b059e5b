// The form's four parts: model, data, reward, settings. Boundary: fields and the file list; the actions are in
// `actions.js`.

import { ago, bytes, el, section } from "../../dom.js";
import { uploader } from "../../uploads.js";
import { methodOf } from "./draft.js";
import { idOf, input, paramField, select } from "./fields.js";
import { beginning, graderForm } from "./grader.js";
import { heldOutParts, holdOut } from "./held_out.js";
import { firstRowPart } from "./rows.js";
import { settingsPart } from "./settings.js";
import { rowsParts } from "./suite.js";
import { taskField } from "./tasks.js";
import { graderTrial } from "./trial.js";

const METHODS = [
  ["reinforcement", "Reinforcement (GRPO): learn from a reward"],
  ["supervised", "Supervised: imitate each row's last message"],
  ["training_free", "Training-free: collect lessons in the prompt"],
];

// `names`: job id → name, of jobs that have one.
export function modelPart(draft, models, names) {
  const bases = models.filter((model) => model.owned_by === "catalogue").map((model) => [model.id, model.id]);
  const own = models.filter((model) => model.owned_by !== "catalogue").map((model) => [model.id, ownLabel(model, names)]);
  const options = [...(draft.body.model ? [] : [["", "Choose a model"]]), ...bases, ...own];
  const method = select(draft, "method.type", METHODS, (type) => {
    draft.set("method", methodOf(type));
    if (type !== "supervised") draft.set(`method.${type}.grader`, beginning(draft.likely, draft.answer));
    return type;
  });
  return section("Model", el("div", { class: "panel stack" },
    paramField("model", "Start from", "A base model, or one of your fine-tuned models.", select(draft, "model", options)),
    paramField("method.type", "Method", null, method),
    paramField("name", "Name", "Shown in the list of jobs.", input(draft, "name", { placeholder: "optional", maxlength: 128 })),
    paramField("suffix", "Suffix", "Added to the model name.", input(draft, "suffix", { placeholder: "optional", maxlength: 64 }))));
}

// "Articles, imitate (ft:tiny:default::PuhT…)"
function ownLabel({ id, job_id: job }, names) {
  return names.has(job) ? `${names.get(job)} (${id})` : `${id} (yours)`;
}

export function dataPart(draft, files, signal) {
  const known = (id) => files.find((file) => file.id === id);
  const training = select(draft, "training_file", [["", files.length ? "Choose a file" : "No file yet. Upload one."], ...files.map(named)], (id) => {
    holdOut(draft, known(id), known(draft.body.training_file));
    return id || undefined;
  });
  const add = (file) => {
    if (!known(file.id)) files.push(file);
    for (const control of training.form.querySelectorAll("select[data-files]")) {
      if (![...control.options].some((option) => option.value === file.id)) control.options[0].after(el("option", { value: file.id }, named(file)[1]));
    }
  };
  training.dataset.files = "";
  const use = (param) => (file) => {
    add(file);
    if (param === "training_file") holdOut(draft, file, known(draft.body.training_file));
    draft.set(param, file.id);
  };
  const upload = uploader({ id: "new-upload", signal, onUploaded: use("training_file"), imitates: () => draft.type === "supervised" });
  const [row, fields] = firstRowPart(draft, known, use("training_file"), signal);
  const file = [paramField("training_file", "Training file", null, training, upload), row];
  return section("Data", el("div", { class: "panel stack" }, rowsParts(draft, file, signal), fields,
    heldOutParts(draft, files, signal, use("validation_file"))));
}

const named = (file) => [file.id, `${file.filename}, ${bytes(file.bytes)}, ${ago(file.created_at).textContent ?? ""}`];

// Reward and settings depend on the method, so they are rendered again when it changes.
export function methodParts(draft, models, signal) {
  const box = el("div", { class: "parts" });
  let shown;
  const draw = () => {
    if (draft.type === shown) return;
    shown = draft.type;
    const grader = `method.${shown}.grader`;
    box.replaceChildren(
      ...(shown === "supervised" ? [] : [section("Reward", el("div", { class: "panel stack" },
        shown === "reinforcement" && taskField(draft), graderForm(draft, grader), graderTrial(draft, grader, signal)))]),
      settingsPart(draft, shown, (id) => models.find((model) => model.id === id)?.fits?.full ?? null));
  };
  draft.watch(draw);
  return box;
}

// A grader is focused at its type.
export function focusField(param) {
  const shown = document.getElementById(idOf(`${param}.type`)) ?? document.getElementById(idOf(param));
  shown?.focus();
}
