// Tasks to start from: each sets the grader and the settings that usually go with it.

import { el } from "../../dom.js";
import { paramField } from "./fields.js";
import { forField } from "./grader.js";

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
  text: {
    label: "Exact text",
    grader: { type: "string_check", operation: "eq", input: "{{sample.output_text}}", reference: "{{item.answer}}" },
    hyperparameters: {},
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

// The choice of a task; it changes the request once and is not part of it. With another grader it is no longer that task:
// what it has filled in is taken back, unless the user has changed it.
export function taskField(draft) {
  const choice = el("select", {}, el("option", { value: "" }, "Choose…"),
    Object.entries(TASKS).map(([name, task]) => el("option", { value: name }, task.label)));
  let chosen = null; // {task, before: the method without it}
  const leave = () => {
    const { task, before } = chosen;
    chosen = draft.preset = null;
    return without(task, before, draft.body.method.reinforcement);
  };
  choice.addEventListener("change", () => {
    const before = chosen ? leave() : draft.body.method.reinforcement;
    const task = TASKS[choice.value];
    if (task) chosen = { task, before: structuredClone(before) };
    draft.preset = task?.grader;
    draft.set("method.reinforcement", task ? withTask(before, { ...task, grader: forField(task.grader, draft.answer) }) : before);
  });
  draft.listen(() => {
    const method = draft.body.method?.reinforcement;
    if (!chosen || !method || isTask(chosen.task, method)) return;
    choice.value = "";
    draft.set("method.reinforcement", leave());
  });
  return paramField("task", "Task", "Fills in a grader and settings to start from.", choice);
}

const isTask = ({ grader, tools }, method) => method.grader?.type === grader.type && Boolean(method.tools) === Boolean(tools);

function withTask({ tools: _tools, ...method }, { grader, tools, hyperparameters }) {
  const found = { ...method, grader, hyperparameters: { ...method.hyperparameters, ...hyperparameters } };
  return structuredClone(tools ? { ...found, tools } : found);
}

// `method` with the settings that it had before the task; those that the user has changed since stay.
function without(task, before, { tools, ...method }) {
  const hyperparameters = { ...method.hyperparameters };
  for (const [name, value] of Object.entries(task.hyperparameters)) {
    if (hyperparameters[name] !== value) continue;
    if (before.hyperparameters?.[name] === undefined) delete hyperparameters[name];
    else hyperparameters[name] = before.hyperparameters[name];
  }
  const kept = task.tools ? before.tools : tools;
  return { ...method, hyperparameters, ...(kept && { tools: kept }) };
}
