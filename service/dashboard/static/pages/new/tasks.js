// Tasks to start from: each sets the grader and the settings that usually go with it.

import { el } from "../../dom.js";
import { field } from "./fields.js";

const NUMBER = { type: "numeric", name: "correct", reference: "{{item.answer}}" };

// name → {label, grader, tools, hyperparameters}
const TASKS = {
  maths: {
    label: "Maths, answer in tags",
    grader: {
      type: "multi",
      graders: {
        correct: { ...NUMBER, tag: "answer" },
        format: { type: "format", name: "format", tags: ["think", "answer"] },
      },
      calculate_output: "0.9 * correct + 0.1 * format",
    },
    hyperparameters: { max_completion_tokens: 512 },
  },
  code: {
    label: "Code with tests",
    grader: { type: "code_tests", tests: "{{item.tests}}" },
    hyperparameters: { max_completion_tokens: 1024 },
  },
  classification: {
    label: "Classification",
    grader: { type: "string_check", operation: "eq", input: "{{sample.output_text}}", reference: "{{item.answer}}" },
    hyperparameters: { max_completion_tokens: 16, group_size: 16 },
  },
  format: {
    label: "Output format",
    grader: { type: "format", tags: ["think", "answer"] },
    hyperparameters: { max_completion_tokens: 512 },
  },
  tools: {
    label: "Maths with a Python tool",
    grader: NUMBER,
    tools: [{ type: "python" }],
    hyperparameters: { max_completion_tokens: 1024, max_turns: 4 },
  },
};

// The choice of a task; it changes the request once and is not part of it.
export function taskField(draft) {
  const choice = el("select", {}, el("option", { value: "" }, "Choose…"),
    Object.entries(TASKS).map(([name, task]) => el("option", { value: name }, task.label)));
  choice.addEventListener("change", () => {
    if (choice.value) draft.set("method.reinforcement", withTask(draft.body.method.reinforcement, TASKS[choice.value]));
  });
  return field("task", "Task", "Fills in a grader and settings to start from.", choice);
}

function withTask({ tools: _tools, ...method }, { grader, tools, hyperparameters }) {
  const found = { ...method, grader, hyperparameters: { ...method.hyperparameters, ...hyperparameters } };
  return structuredClone(tools ? { ...found, tools } : found);
}
