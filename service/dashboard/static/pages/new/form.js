// The form's four parts: model, data, reward, settings. Boundary: fields and the file list; the actions are in
// `actions.js`.

import { firstRow, upload } from "../../api.js";
import { ago, announce, bytes, el, percent, section } from "../../dom.js";
import { methodOf } from "./draft.js";
import { field, idOf, input, select } from "./fields.js";
import { beginning, graderForm, suit } from "./grader.js";

const METHODS = [
  ["reinforcement", "Reinforcement (GRPO): learn from a reward"],
  ["supervised", "Supervised: imitate each row's last message"],
  ["training_free", "Training-free: collect lessons in the prompt"],
];
const GROUP = ["group_size", "Completions per prompt", "Compared with each other. More completions give a clearer signal and take proportionally longer."];
const LONGEST = ["max_completion_tokens", "Max completion tokens", "Longer completions are cut off and rarely score. Memory and time grow with this limit."];
const RATE = ["learning_rate", "Learning rate", "Higher is faster but less stable."];
const RANK = ["lora.rank", "LoRA rank", "Size of the adapter. 8 to 32 is usual."];
const SETTINGS = {
  reinforcement: [
    GROUP,
    ["prompts_per_step", "Prompts per step", "Larger steps are more stable and slower."],
    ["n_steps", "Steps", "Number of weight updates. 50 is enough to see whether it learns."],
    LONGEST,
    RATE,
    ["beta", "KL coefficient (β)", "0 follows the reward alone; 0.04 keeps the model close to the base model."],
    RANK,
  ],
  supervised: [
    ["n_epochs", "Epochs", "Passes over the data. Many passes memorize the rows."],
    ["batch_size", "Rows per step", "Larger steps are more stable and slower."],
    RATE,
    ["max_tokens", "Max tokens per row", "Longer rows are rejected, never truncated."],
    RANK,
  ],
  training_free: [
    GROUP,
    ["prompts_per_step", "Rows per step", "The lessons change once per step."],
    ["n_epochs", "Epochs", "Passes over the data."],
    LONGEST,
  ],
};

export function modelPart(draft, models) {
  const bases = models.filter((model) => model.owned_by === "catalogue").map((model) => [model.id, model.id]);
  const own = models.filter((model) => model.owned_by !== "catalogue").map((model) => [model.id, `${model.id} (yours)`]);
  const options = [...(draft.body.model ? [] : [["", "Choose a model"]]), ...bases, ...own];
  const method = select(draft, "method.type", METHODS, (type) => {
    draft.set("method", methodOf(type));
    if (type !== "supervised") draft.set(`method.${type}.grader`, beginning("numeric", draft.answer));
    return type;
  });
  return section("Model", el("div", { class: "panel stack" },
    field("model", "Start from", "A base model, or one of your fine-tuned models.", select(draft, "model", options)),
    field("method.type", "Method", null, method),
    field("suffix", "Suffix", "Added to the model name.", input(draft, "suffix", { placeholder: "optional", maxlength: 64 }))));
}

export function dataPart(draft, files, signal) {
  const rows = el("div", { class: "stack" });
  const fields = el("datalist", { id: "row-fields" });
  const training = select(draft, "training_file", [["", files.length ? "Choose a file" : "No file yet. Upload one."], ...files.map(named)]);
  const held = select(draft, "validation_file", [["", "None"], ...files.map(named)]);
  const add = (file) => {
    for (const control of [training, held]) control.options[0].after(el("option", { value: file.id }, named(file)[1]));
    draft.set("training_file", file.id);
  };
  let peeked;
  const peek = async () => {
    const id = draft.body.training_file;
    if (id === peeked) return;
    peeked = id;
    const row = id ? await firstRow(id, { signal }).catch(() => null) : null;
    if (peeked !== id) return;
    showRow(rows, fields, row);
    if (row) suit(draft, row);
  };
  draft.listen(peek);
  peek();
  return section("Data", el("div", { class: "panel stack" },
    field("training_file", "Training file", null, training, uploader(add, signal)), rows, fields,
    field("validation_file", "Held-out file", "Rows that are not used for training. They show whether the model generalizes.", held)));
}

const named = (file) => [file.id, `${file.filename}, ${bytes(file.bytes)}, ${ago(file.created_at).textContent ?? ""}`];

// The button that uploads, with its progress.
function uploader(onUploaded, signal) {
  const bar = el("i", { style: { width: "0%" } });
  const progress = el("div", { class: "bar", hidden: true }, bar);
  const status = el("p", { class: "hint", role: "status" }, "JSONL, one example a row: {\"messages\": […], \"answer\": …}");
  const picker = el("input", { type: "file", accept: ".jsonl,.json", id: "new-upload", class: "unseen" });
  picker.addEventListener("change", async () => {
    const [file] = picker.files;
    if (!file) return;
    progress.hidden = false;
    status.className = "hint";
    try {
      const stored = await upload(file, { signal, onProgress: (part) => {
        bar.style.width = `${100 * part}%`;
        status.textContent = `Uploading ${file.name}: ${percent(part)}`;
      } });
      status.textContent = `${file.name} uploaded.`;
      onUploaded(stored);
    } catch (error) {
      if (signal.aborted) return;
      status.className = "problem small";
      status.textContent = error.message;
      announce(error.message);
    } finally {
      progress.hidden = true;
      picker.value = "";
    }
  });
  return el("div", { class: "stack" },
    el("div", { class: "row" }, picker, el("label", { for: "new-upload", class: "button" }, "Upload a file"), status), progress);
}

function showRow(box, list, row) {
  const names = Object.keys(row ?? {}).filter((name) => !["messages", "prompt", "tools"].includes(name));
  list.replaceChildren(...names.map((name) => el("option", { value: `{{item.${name}}}` })));
  if (!row) return box.replaceChildren();
  const text = row.messages?.at(-1)?.content ?? row.prompt ?? "";
  box.replaceChildren(el("div", { class: "note stack" },
    el("p", { class: "small faint" }, "First row"),
    el("p", { class: "text cut-lines" }, typeof text === "string" ? text : JSON.stringify(text)),
    el("p", { class: "small" }, "Fields for the grader: ", names.length
      ? names.map((name) => el("code", { class: "tag" }, `{{item.${name}}}`))
      : "none")));
}

// Reward and settings depend on the method, so they are rendered again when it changes.
export function methodParts(draft) {
  const box = el("div", { class: "parts" });
  let shown;
  const draw = () => {
    if (draft.type === shown) return;
    shown = draft.type;
    const at = `method.${shown}`;
    const settings = SETTINGS[shown] ?? [];
    box.replaceChildren(
      ...(shown === "supervised" ? [] : [section("Reward", el("div", { class: "panel" }, graderForm(draft, `${at}.grader`)))]),
      section("Settings", el("div", { class: "panel settings" }, settings.map(([name, label, hint]) =>
        field(`${at}.hyperparameters.${name}`, label, hint,
          input(draft, `${at}.hyperparameters.${name}`, { kind: "number", min: 0, inputmode: "decimal" }))))));
  };
  draft.listen(draw);
  draw();
  return box;
}

export function focusField(param) {
  document.getElementById(idOf(param))?.focus();
}
