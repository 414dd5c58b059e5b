// Try a model: one prompt, two models side by side, the same seed. Their output is untrusted text.

import { replaceQuery, styled } from "../../address.js";
import { get } from "../../api.js";
import { announce, button, el, empty, failed, heading, loading } from "../../dom.js";
import { Answer } from "./answer.js";

const SIDES = ["left", "right"];
const NAMES = { left: "Left", right: "Right" };

export async function show(root, params, signal) {
  const box = el("div");
  root.append(heading("Try a model", {
    below: el("p", { class: "hint" }, "Send one prompt to two models with the same seed."),
  }), box);
  loading(box, "Loading the models");
  const [{ data }] = await Promise.all([get("/v1/models", { signal }), styled("try")]);
  if (!data.length && !params.query.get("model")) return none(box);
  const page = new TryPage(data, params.query, signal);
  box.replaceChildren(...page.parts());
}

function none(box) {
  empty(box, "No model yet",
    el("span", {}, "An operator can add one with ", el("code", {}, "grpo models add"), "."));
}

class TryPage {
  constructor(models, query, signal) {
    this.signal = signal;
    this.models = models;
    const named = query.get("model");
    const tuned = named ?? models.find((model) => model.id.startsWith("ft:"))?.id ?? "";
    const base = query.get("base") ?? baseOf(tuned, models);
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
    this.send = button("Send", null, { kind: "primary", type: "submit" });
    this.stop = button("Stop", () => this.running?.abort(), { disabled: true });
    const more = el("details", {}, el("summary", {}, "System prompt and settings"),
      el("div", { class: "more" }, field("System prompt", this.system), this.settings()));
    // an invalid number in there must be visible before the browser can point at it
    more.addEventListener("invalid", () => (more.open = true), true);
    return el("form", { class: "panel", onsubmit: (event) => {
      event.preventDefault();
      this.generate();
    } },
    el("div", { class: "choices" }, SIDES.map((side) => field(NAMES[side], this.chosen[side]))),
    field("Prompt", this.prompt), more,
    el("div", { class: "row" }, this.send, this.stop,
      el("span", { class: "hint" }, "Ctrl + Enter sends. The first answer waits until the model is loaded.")));
  }

  settings() {
    const numeric = (id, props) => el("input", { id, type: "number", ...props });
    this.temperature = numeric("temperature", { min: 0, max: 2, step: "any", value: 1, required: true });
    this.maxTokens = numeric("max-tokens", { min: 1, step: 1, value: 256, required: true });
    this.seed = numeric("seed", { min: 0, step: 1, value: 1, required: true });
    this.isPlain = el("input", { id: "plain", type: "checkbox" });
    return el("div", { class: "settings" },
      field("Temperature", this.temperature), field("Max tokens", this.maxTokens), field("Seed", this.seed),
      el("label", { class: "row", for: "plain" }, this.isPlain, "Plain text, no chat template"));
  }

  chooser(side, chosen) {
    const ids = this.models.map((model) => model.id);
    const listed = chosen && !ids.includes(chosen) ? [chosen, ...ids] : ids;
    return el("select", { id: side, onchange: () => this.remember() },
      side === "right" && el("option", { value: "" }, "No second model"),
      listed.map((id) => el("option", { value: id, selected: id === chosen }, id)));
  }

  remember() {
    replaceQuery({ base: this.chosen.left.value, model: this.chosen.right.value });
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
    for (const side of SIDES) this.answers[side].clear();
    await Promise.all(chosen.map((side) => this.answers[side].stream(this.requestFor(this.chosen[side].value), signal)));
    this.running = null;
    this.send.disabled = false;
    this.stop.disabled = true;
    if (!this.signal.aborted) announce("Done");
  }

  requestFor(model) {
    return {
      model,
      prompt: this.prompt.value,
      system: this.isPlain.checked ? "" : this.system.value,
      isPlain: this.isPlain.checked,
      temperature: this.temperature.valueAsNumber,
      maxTokens: this.maxTokens.valueAsNumber,
      seed: this.seed.valueAsNumber,
    };
  }
}

function field(label, control) {
  return el("div", { class: "field" }, el("label", { for: control.id }, label), control);
}

// The catalogue's model inside `ft:<base>:…`, otherwise the first base model.
function baseOf(model, models) {
  const bases = models.filter((one) => !one.id.startsWith("ft:")).map((one) => one.id);
  const named = model.startsWith("ft:") ? model.split(":")[1] : model;
  return bases.includes(named) ? named : bases[0] ?? models[0]?.id ?? model;
}
