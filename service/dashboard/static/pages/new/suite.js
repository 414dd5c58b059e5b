// Rows of a Reasoning Gym task instead of a training file: the request's `dataset`.

import { get } from "../../api.js";
import { el, optionsOf } from "../../dom.js";
import { input, paramField, select } from "./fields.js";
import { beginning } from "./grader.js";

const TASKS = "/v1/fine_tuning/suites/reasoning_gym";
const WAYS = [["file", "A file"], ["suite", "A Reasoning Gym task"]];

// `file`: the elements of the form that choose a file; they are hidden while a task is chosen.
export function rowsParts(draft, file, signal) {
  const way = el("select", {}, optionsOf(WAYS));
  const task = select(draft, "dataset.task", [["", "Choose a task"]]);
  const suite = [
    paramField("dataset.task", "Reasoning Gym task", "Its rows are generated, and its own scorer is the grader.", task),
    paramField("dataset.size", "Number of rows", null, input(draft, "dataset.size", { kind: "number", min: 1, step: 1, placeholder: "500" })),
  ];
  let isRequested = false;
  const draw = () => {
    const isSuite = draft.body.dataset !== undefined;
    way.value = isSuite ? "suite" : "file";
    for (const part of suite) part.hidden = !isSuite;
    for (const part of file) part.hidden = isSuite;
    if (!isSuite || isRequested) return;
    isRequested = true;
    fill(task, signal);
  };
  way.addEventListener("change", () => choose(draft, way.value === "suite"));
  if (draft.body.dataset) draft.guessed = "reasoning_gym";
  draft.watch(draw);
  return [paramField("rows_from", "Rows from", null, way), ...suite, ...file];
}

function choose(draft, isSuite) {
  const { dataset: _dataset, training_file: _file, ...rest } = draft.body;
  draft.guessed = isSuite ? "reasoning_gym" : "numeric";
  draft.replace({ ...rest, ...(isSuite ? { dataset: { type: "reasoning_gym" } } : { training_file: "" }) });
  if (draft.type !== "supervised") draft.set(`method.${draft.type}.grader`, beginning(draft.guessed, draft.answer));
}

async function fill(control, signal) {
  try {
    const { data } = await get(TASKS, { signal });
    const known = new Set([...control.options].map((option) => option.value));
    control.append(...data.filter(({ task }) => !known.has(task)).map(({ task }) => el("option", { value: task }, task)));
  } catch (error) {
    if (!signal.aborted) control.options[0].textContent = error.message;
  }
}
