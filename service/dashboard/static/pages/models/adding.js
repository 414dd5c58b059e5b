// How a base model gets into the catalogue: a form for models of the hub, if the operator allows them, and commands for the
// service's machine. Shown wherever a model is missing.

import { post } from "../../api.js";
import { commands } from "../../copying.js";
import { announce, button, el, failed } from "../../dom.js";

// `hub`: whether the service adds models of the hub; `added()` is called after one was added.
export function waysToAdd({ hub = false, added, signal } = {}) {
  return el("div", { class: "panel ways" },
    hub && hubForm(added, signal),
    commands("From the Hugging Face hub, on the service's machine", "grpo models add Qwen/Qwen3-0.6B"),
    commands("A folder with config.json, a tokenizer and safetensors weights", "grpo models add NAME ./folder"),
    commands("To try the service without a download: a tiny random model, in a clone of the repository", [
      ".venv/bin/python -m examples.tiny_model tiny-model", ".venv/bin/grpo models add tiny ./tiny-model",
    ].join("\n")),
    el("p", { class: "hint" }, "No restart is needed. If the service has a ", el("code", {}, "GRPO_HOME"), ", set it for these commands too.",
      !hub && [" If the operator sets ", el("code", {}, "GRPO_HUB_MODELS=true"), ", models of the hub can be added in the browser."]));
}

function hubForm(added, signal) {
  const id = el("input", { id: "hub-model", required: true, pattern: ".+/.+", title: "owner/name", placeholder: "Qwen/Qwen3-0.6B", autocomplete: "off", spellcheck: "false" });
  const add = button("Add", null, { kind: "primary", type: "submit" });
  const problem = el("div");
  const submit = async (event) => {
    event.preventDefault();
    add.disabled = true;
    problem.replaceChildren(el("p", { class: "hint", role: "status" }, "Checking its size on the hub…"));
    try {
      const model = await post("/v1/models", { id: id.value.trim() }, { signal });
      problem.replaceChildren();
      announce(`${model.id} added`);
      added(model);
    } catch (error) {
      if (!signal.aborted) failed(problem, error);
    }
    add.disabled = false;
  };
  return el("form", { class: "field", onsubmit: submit },
    el("label", { for: id.id }, "From the Hugging Face hub"), el("div", { class: "row" }, id, add),
    el("p", { class: "hint" }, "Its size is checked now; the first job with it downloads it and shows the progress."), problem);
}
