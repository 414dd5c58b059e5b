// The settings of a method: the usual ones, and more of them folded, with the job's metadata.

import { el, optionsOf, section } from "../../dom.js";
import { settingLabel } from "../../labels.js";
import { methodOf } from "./draft.js";
import { input, paramField, select } from "./fields.js";
import { guardsPart } from "./guards.js";

const MOST_PAIRS = 16;
// [hyperparameter, hint, more attributes of the input]
const GROUP = ["group_size", "Compared with each other. More completions give a clearer signal and take proportionally longer."];
const LONGEST = ["max_completion_tokens", "Longer completions are cut off and rarely score. Memory and time grow with this limit."];
const RATE = ["learning_rate", "Higher is faster but less stable."];
const RANK = ["lora.rank", "Size of the adapter. 8 to 32 is usual."];
const WEIGHTS = [["adapter", "Adapter (LoRA)"], ["full", "All weights"]];
const ADAPTER_HINT = "An adapter is small, and usually enough.";
const FULL_HINT = "Takes several times the memory and a lower learning rate; the result is a whole model. Check shows the memory.";
const FITS = { true: " It fits this model and the workers.", false: " This model does not fit the workers." };
const FULL_RATE = 1e-5; // the highest that the form keeps for all weights
const EVALUATIONS = ["eval_interval", "Steps between evaluations of the held-out rows.", { placeholder: "auto", min: 1 }];
const TEMPERATURE = ["temperature", "Temperature of sampling. At 1, the model learns from its own distribution.", { placeholder: "1" }];
const DYNAMIC = ["dynamic_sampling", "Rounds that replace groups without signal with new prompts. 0 = off.", { placeholder: "0", step: 1 }];
const EVAL_TEMPERATURE = ["eval_temperature", "0 = greedy.", { placeholder: "0" }];
const RECIPES = [
  ["", "GRPO"], ["dr_grpo", "Dr. GRPO"], ["dapo", "DAPO"], ["gspo", "GSPO"], ["cispo", "CISPO"], ["sapo", "SAPO"],
  ["rloo", "RLOO"], ["reinforce_plus_plus", "REINFORCE++"],
];
const SETTINGS = {
  reinforcement: [
    GROUP,
    ["prompts_per_step", "Larger steps are more stable and slower."],
    ["n_steps", "Number of weight updates. 50 is enough to see whether it learns."],
    LONGEST,
    RATE,
    ["beta", "0 follows the reward alone; 0.04 keeps the model close to the base model."],
  ],
  supervised: [
    ["n_epochs", "Passes over the data. With many passes, the model memorises the rows."],
    ["batch_size", "Larger steps are more stable and slower."],
    RATE,
    ["max_tokens", "Longer rows are rejected, never truncated."],
  ],
  training_free: [
    GROUP,
    ["prompts_per_step", "The lessons change once per step."],
    ["n_epochs", "Passes over the data."],
    LONGEST,
  ],
};
const MORE = {
  reinforcement: [TEMPERATURE, DYNAMIC, EVALUATIONS, EVAL_TEMPERATURE],
  supervised: [EVALUATIONS],
  training_free: [EVALUATIONS, EVAL_TEMPERATURE],
};

// `fitsFull(model)`: whether training all weights of a model fits the workers; null: unknown.
export function settingsPart(draft, type, fitsFull) {
  const at = `method.${type}.hyperparameters`;
  const number = ([name, hint, props]) => paramField(`${at}.${name}`, settingLabel(name), hint,
    input(draft, `${at}.${name}`, { kind: "number", min: 0, inputmode: "decimal", ...props }));
  const recipe = type === "reinforcement" && paramField(`${at}.recipe`, settingLabel("recipe"),
    "Fills in the loss, the advantage, and what the settings leave open.", select(draft, `${at}.recipe`, RECIPES));
  const seed = paramField("seed", "Seed", "The same seed repeats the job. Empty = random.",
    input(draft, "seed", { kind: "number", min: 0, step: 1, placeholder: "random" }));
  return section("Settings", el("div", { class: "panel stack" },
    el("div", { class: "settings" }, (SETTINGS[type] ?? []).map(number), type !== "training_free" && weightsFields(draft, at, number(RANK), fitsFull)),
    el("details", {}, el("summary", {}, "More settings"),
      el("div", { class: "settings more-settings" }, recipe, (MORE[type] ?? []).map(number), seed),
      metadataPart(draft), type === "reinforcement" && guardsPart(draft, `${at}.guards`))));
}

// An adapter or all weights, the two kinds of values of `lora`, and the adapter's field `rank`.
function weightsFields(draft, at, rank, fitsFull) {
  const choice = el("select", {}, optionsOf(WEIGHTS));
  const box = paramField(`${at}.lora`, "Trained weights", ADAPTER_HINT, choice);
  choice.addEventListener("change", () => {
    const isFull = choice.value === "full";
    if (isFull && draft.get(`${at}.learning_rate`) > FULL_RATE) draft.set(`${at}.learning_rate`, FULL_RATE);
    draft.set(`${at}.lora`, isFull ? "full" : methodOf(draft.type)[draft.type].hyperparameters.lora);
  });
  const draw = () => {
    const isFull = draft.get(`${at}.lora`) === "full";
    choice.value = isFull ? "full" : "adapter";
    box.querySelector(".hint").textContent = isFull ? `${FULL_HINT}${FITS[fitsFull(draft.body.model)] ?? ""}` : ADAPTER_HINT;
    rank.hidden = isFull;
  };
  draft.watch(draw);
  return [box, rank];
}

// A row for each key and value, and an empty one for the next.
function metadataPart(draft) {
  const list = el("div", { class: "pairs" });
  const read = () => Object.fromEntries([...list.children].map((row) => [...row.children].map((input) => input.value.trim())).filter(([key]) => key));
  const change = () => {
    const found = read();
    draft.set("metadata", Object.keys(found).length ? found : undefined);
    if (list.lastElementChild.firstElementChild.value && list.children.length < MOST_PAIRS) list.append(row("", ""));
  };
  const row = (key, value) => {
    const at = list.children.length + 1;
    const input = (label, props) => el("input", { "aria-label": `Metadata ${label} ${at}`, autocomplete: "off", spellcheck: "false", oninput: change, ...props });
    return el("div", { class: "pair" }, input("key", { value: key, maxlength: 64, placeholder: "key" }), input("value", { value, maxlength: 512, placeholder: "value" }));
  };
  const write = () => {
    const given = draft.body.metadata ?? {};
    if (list.hasChildNodes() && JSON.stringify(given) === JSON.stringify(read())) return;
    list.replaceChildren();
    for (const pair of [...Object.entries(given), ["", ""]].slice(0, MOST_PAIRS)) list.append(row(...pair));
  };
  draft.watch(write);
  return el("fieldset", { "data-param": "metadata" }, el("legend", {}, "Metadata"), list,
    el("p", { class: "hint" }, "Shown with the job, for example team and maths. Clear a key to remove it."),
    el("p", { class: "problem small", id: "new-metadata-problem" }));
}
