// How a base model gets into the catalogue: commands for the service's machine. Shown wherever a model is missing.

import { commands } from "../../copying.js";
import { el } from "../../dom.js";

export function waysToAdd() {
  return el("div", { class: "panel ways" },
    commands("From the Hugging Face hub, on the service's machine", "grpo models add Qwen/Qwen3-0.6B"),
    commands("A folder with config.json, a tokenizer and safetensors weights", "grpo models add NAME ./folder"),
    commands("To try the service without a download: a tiny random model, in a clone of the repository", [
      ".venv/bin/python -m examples.tiny_model tiny-model", ".venv/bin/grpo models add tiny ./tiny-model",
    ].join("\n")),
    el("p", { class: "hint" }, "No restart is needed. If the service has a ", el("code", {}, "GRPO_HOME"), ", set it for these commands too. If the operator sets ", el("code", {}, "GRPO_HUB_MODELS=true"),
      ", a job may name any model of the hub."));
}
