// The first row of the training file: its prompt, and its answer or its fields for the grader. Supervised training needs
// an answer at the end of each row, and GRPO has it in a field, so each kind of file can be made from the other.

import { firstRow, request, upload } from "../../api.js";
import { ANSWER_NAMES, IMITATE, MAX_BYTES, pathOf, withAnswer, withoutAnswer } from "../../csv.js";
import { button, el, failed, field } from "../../dom.js";
import { suit } from "./grader.js";

const NOT_FIELDS = ["", "messages", "prompt", "tools"];
const ASK = "-ask.jsonl"; // end of the name of a file without answers at the end of its rows

// `known(id)`: the file object; `use(file)` makes an uploaded file the training file.
export function firstRowPart(draft, known, use, signal) {
  const box = el("div", { class: "stack" });
  const fields = el("datalist", { id: "row-fields" });
  let peeked, drawn, row;
  const draw = () => {
    const now = `${peeked} ${Boolean(row)} ${draft.type === "supervised"}`;
    if (now === drawn) return;
    drawn = now;
    const other = draft.type === "supervised" ? adding : removing;
    box.replaceChildren(...(row ? [shownRow(row, draft, () => other(draft, known(peeked), use, signal))] : []));
  };
  const peek = async () => {
    const id = draft.body.training_file;
    if (id === peeked) return draw();
    peeked = id;
    row = null; // the form may be drawn before this row has arrived
    const found = id ? await firstRow(id, { signal }).catch(() => null) : null;
    if (peeked !== id) return;
    row = found;
    draft.columns = Object.keys(row ?? {}).filter((name) => !NOT_FIELDS.includes(name));
    fields.replaceChildren(...draft.columns.map((name) => el("option", { value: `{{${pathOf(name)}}}` })));
    draw();
    if (row) suit(draft, row);
  };
  draft.watch(peek);
  return [box, fields];
}

// `other()`: elements that offer the file of the other kind, for rows that the method cannot use.
function shownRow(row, draft, other) {
  const last = row.messages?.at(-1);
  const answer = last?.role === "assistant" ? last : null;
  const prompt = (answer ? row.messages.at(-2) : last)?.content ?? row.prompt ?? "";
  const fields = [el("p", { class: "small" }, "Fields for the grader: ", draft.columns.length
    ? draft.columns.map((name) => el("code", { class: "tag" }, `{{${pathOf(name)}}}`)) : "none")];
  const fits = Boolean(answer) === (draft.type === "supervised");
  const below = !fits ? other() : answer ? [el("p", { class: "small" }, "Answer to imitate:"), textOf(answer.content)] : fields;
  return el("div", { class: "note stack" }, el("p", { class: "small faint" }, "First row"), textOf(prompt), below);
}

const textOf = (content) => el("p", { class: "text cut-lines" }, typeof content === "string" ? content : JSON.stringify(content));

// The choice of the field with the answer, and the button that makes another file with it.
function adding(draft, file, use, signal) {
  const why = el("p", { class: "small" }, "These rows have no answer to imitate.");
  if (!draft.columns.length || !isSmall(file)) return [why];
  const choice = el("select", { id: "new-answer-field" }, draft.columns.map((name) => el("option", { value: name }, name)));
  choice.value = ANSWER_NAMES.find((name) => draft.columns.includes(name)) ?? draft.columns[0];
  const make = () => converted(file, (row) => withAnswer(row, choice.value), withEnd(file.filename, IMITATE), signal);
  return [why, field("Field with the answer", choice),
    ...making("Add it to each row", "GRPO", async () => use(await make()), signal)];
}

// The button that makes another file, without the answers at the end.
function removing(draft, file, use, signal) {
  const why = el("p", { class: "small" }, "These rows end with their answer. This method needs rows that end with the prompt.");
  if (!isSmall(file)) return [why];
  const make = () => converted(file, withoutAnswer, withEnd(file.filename, ASK), signal);
  return [why, ...making("Move it to the field answer", "supervised training", async () => use(await make()), signal)];
}

const isSmall = (file) => Boolean(file) && file.bytes <= MAX_BYTES;
const stem = (name) => name.replace(/(-imitate)?(\.jsonl)?$/, "");
const withEnd = (name, end) => `${stem(name)}${end}`;

function making(label, other, make, signal) {
  const problem = el("div");
  const start = button(label, async () => {
    start.disabled = true;
    try {
      await make();
    } catch (error) {
      if (!signal.aborted) failed(problem, error);
      start.disabled = false;
    }
  });
  return [el("div", { class: "row" }, start, el("span", { class: "hint" }, `Makes another file; this one stays for ${other}.`)), problem];
}

async function converted(file, change, name, signal) {
  const text = await (await request(`/v1/files/${file.id}/content`, { signal })).text();
  const lines = text.split("\n").filter((line) => line.trim());
  const rows = lines.map((line) => `${JSON.stringify(change(JSON.parse(line)))}\n`);
  return upload(new File(rows, name, { type: "application/jsonl" }), { signal });
}

// → (id: of a file for supervised training) ⇒ id of the one of `files` that has the same rows for GRPO, or the same id.
export function counterpartIn(files) {
  return (id) => {
    const file = files.find((one) => one.id === id);
    const names = file ? [".jsonl", "", ASK].map((end) => withEnd(file.filename, end)) : [];
    const isLike = (one) => one.filename !== file.filename && names.includes(one.filename) && one.num_rows === file.num_rows;
    return files.find(isLike)?.id ?? id;
  };
}
