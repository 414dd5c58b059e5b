// The grader bench: a reward rule, an answer and a row; its score and its problems.
// `#/grader?job=<id>` starts with that job's rule and its newest completion, or the first row of its dataset.

import { styled } from "../../address.js";
import { firstRow, get, jobPath, post } from "../../api.js";
import { announce, button, el, empty, failed, field, heading, loading } from "../../dom.js";
import { jobName } from "../../job_parts.js";
import { CodeField } from "./code.js";
import { EXAMPLES } from "./examples.js";
import { scored } from "./result.js";
import { ownMethod } from "../new/draft.js";

const QUESTION_CHARACTERS = 60;
const GRADERS = "/v1/fine_tuning/alpha/graders";

export async function show(root, params, signal) {
  root.append(heading("Grader bench", {
    below: el("p", { class: "hint" }, "Test a grader on one answer before you train with it. Nothing is stored."),
  }));
  const box = root.appendChild(el("div"));
  loading(box, "Loading the grader");
  const from = params.query.get("job");
  const [own] = await Promise.all([from && exampleOf(from, signal), styled("grader")]);
  const examples = own ? [own, ...EXAMPLES] : EXAMPLES;
  const bench = new Bench(examples, signal);
  box.replaceWith(el("div", { class: "bench" }, bench.form(), bench.result));
  bench.choose(examples[0]);
}

// A job's own grader with a completion of its last step or, without one, the first row of its dataset.
async function exampleOf(id, signal) {
  const job = await get(jobPath(id), { signal });
  const { type, ...method } = ownMethod(job.method);
  const grader = method[type].grader ?? {};
  const group = await newestGroup(job, signal);
  if (group) {
    const question = group.messages.at(-1)?.content ?? group.prompt;
    return { name: `The job ${jobName(job)}: ${question.slice(0, QUESTION_CHARACTERS)}`, grader, sample: group.completions[0].text, item: group.reference };
  }
  const { messages, tools, ...item } = await firstRow(job.training_file, { signal }).catch(() => ({}));
  return { name: `The job ${jobName(job)}`, grader, sample: "", item };
}

async function newestGroup({ id, progress }, signal) {
  const query = { split: "train", step: progress.step, limit: 1 };
  const { data } = await get(jobPath(id, "/rollouts"), { query, signal }).catch(() => ({ data: [] }));
  return data[0];
}

class Bench {
  constructor(examples, signal) {
    this.examples = examples;
    this.signal = signal;
    this.grader = new JsonField("grader", "Grader (JSON)", { rows: 12 });
    this.item = new JsonField("item", "Dataset row (JSON), item.* in the grader", { rows: 4, isOptional: true });
    this.code = new CodeField(this.grader.input, this.item.input);
    this.sample = el("textarea", { id: "sample", rows: 5, spellcheck: "false" });
    this.result = el("section", { class: "panel result", "aria-label": "Result" });
    this.buttons = [
      button("Run", null, { kind: "primary", type: "submit" }),
      button("Check only", () => this.check()),
    ];
  }

  form() {
    const examples = el("select", { id: "example", onchange: (event) => this.choose(this.examples[event.target.value]) },
      this.examples.map((example, at) => el("option", { value: at }, example.name)));
    return el("form", { class: "panel", novalidate: true, onsubmit: (event) => {
      event.preventDefault();
      this.run();
    } },
    field("Start from", examples), this.code.root, this.grader.root, field("Model answer", this.sample), this.item.root,
    el("div", { class: "row" }, this.buttons));
  }

  choose(example) {
    this.grader.set(example.grader);
    this.item.set(example.item);
    this.code.show();
    this.sample.value = example.sample;
    this.notRun();
  }

  notRun() {
    empty(this.result, "Not run yet", "Run computes the score that training would compute. Check only validates the grader.");
  }

  async run() {
    const [grader, item] = [this.grader.get(), this.item.get()];
    if (grader === undefined || item === undefined) return this.notRun();
    const body = { grader, model_sample: this.sample.value, item };
    await this.send("/run", body, (answer) => this.scored(answer), "Scored");
  }

  scored(answer) {
    this.result.replaceChildren(...scored(answer));
    this.code.mark(Object.values(answer.grader_errors)[0]?.message ?? "");
  }

  async check() {
    const grader = this.grader.get();
    if (grader === undefined) return this.notRun();
    const showValid = (answer) => this.result.replaceChildren(
      el("div", { class: "note good" }, el("h2", {}, "Valid grader"),
        el("p", {}, "The grader with all defaults:")),
      el("pre", { class: "code", tabindex: 0 }, JSON.stringify(answer.grader, null, 2)));
    await this.send("/validate", { grader }, showValid, "Valid grader");
  }

  async send(path, body, show, done) {
    this.grader.accept();
    this.code.refuse("");
    for (const each of this.buttons) each.disabled = true;
    loading(this.result, "Loading");
    try {
      show(await post(`${GRADERS}${path}`, body, { signal: this.signal }));
      this.reveal();
      announce(done);
    } catch (error) {
      if (this.signal.aborted) return;
      this.refused(error);
    }
    for (const each of this.buttons) each.disabled = false;
  }

  // Scrolls to the result if its beginning is not visible. The focus stays, so that Enter runs it again.
  reveal() {
    const { top } = this.result.getBoundingClientRect();
    if (top < 0 || top > 0.7 * window.innerHeight) this.result.scrollIntoView({ block: "start" });
  }

  refused(error) {
    const field = [this.code, this.grader, this.item].find((one) => one.owns(error.param));
    field?.refuse(error.message);
    failed(this.result, error);
    if (!field) this.reveal();
    if (error.param) {
      this.result.firstElementChild.append(el("p", { class: "hint" }, "Field ", el("code", {}, error.param)));
    }
  }
}

// A text area for JSON that reports errors.
class JsonField {
  constructor(id, label, { rows, isOptional = false }) {
    this.id = id;
    this.isOptional = isOptional;
    this.problem = el("p", { class: "problem", role: "alert", id: `${id}-problem` });
    this.input = el("textarea", { id, rows, spellcheck: "false", "aria-describedby": `${id}-problem` });
    this.root = field(label, this.input, this.problem);
  }

  set(value) {
    this.input.value = JSON.stringify(value, null, 2);
    this.accept();
  }

  // The object; null if empty and optional; undefined if it is not JSON, which is then reported.
  get() {
    this.accept();
    const text = this.input.value.trim();
    if (!text && this.isOptional) return null;
    try {
      return JSON.parse(text);
    } catch (error) {
      this.refuse(text ? `This is not JSON: ${error.message}` : "Required.");
      this.input.focus();
      return undefined;
    }
  }

  owns(param) {
    return param === this.id || Boolean(param?.startsWith(`${this.id}.`));
  }

  refuse(message) {
    this.problem.textContent = message;
    this.input.setAttribute("aria-invalid", "true");
  }

  accept() {
    this.problem.textContent = "";
    this.input.removeAttribute("aria-invalid");
  }
}
