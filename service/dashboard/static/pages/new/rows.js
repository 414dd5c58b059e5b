// The first row of the training file: its prompt, and its answer or its fields for the grader. Supervised training needs
// an answer in each row, so it can be added from a field.

import { firstRow, request, upload } from "../../api.js";
import { ANSWER_NAMES, imitated, MAX_BYTES } from "../../csv.js";
import { button, el, failed } from "../../dom.js";
import { suit } from "./grader.js";

const NOT_FIELDS = ["messages", "prompt", "tools"];

// `known(id)`: the file object; `use(file)` makes an uploaded file the training file.
export function firstRowPart(draft, known, use, signal) {
  const box = el("div", { class: "stack" });
  const fields = el("datalist", { id: "row-fields" });
  let peeked, drawn, row;
  const draw = () => {
    const now = `${peeked} ${draft.type === "supervised"}`;
    if (now === drawn) return;
    drawn = now;
    box.replaceChildren(...(row ? [shownRow(row, draft, () => adding(draft, known(peeked), use, signal))] : []));
  };
  const peek = async () => {
    const id = draft.body.training_file;
    if (id === peeked) return draw();
    peeked = id;
    const found = id ? await firstRow(id, { signal }).catch(() => null) : null;
    if (peeked !== id) return;
    row = found;
    draft.columns = Object.keys(row ?? {}).filter((name) => !NOT_FIELDS.includes(name));
    fields.replaceChildren(...draft.columns.map((name) => el("option", { value: `{{item.${name}}}` })));
    draw();
    if (row) suit(draft, row);
  };
  draft.listen(peek);
  peek();
  return [box, fields];
}

function shownRow(row, draft, adding) {
  const last = row.messages?.at(-1);
  const answer = last?.role === "assistant" ? last : null;
  const prompt = (answer ? row.messages.at(-2) : last)?.content ?? row.prompt ?? "";
  const fields = [el("p", { class: "small" }, "Fields for the grader: ", draft.columns.length
    ? draft.columns.map((name) => el("code", { class: "tag" }, `{{item.${name}}}`)) : "none")];
  const below = answer ? [el("p", { class: "small" }, "Answer to imitate:"), textOf(answer.content)]
    : draft.type === "supervised" ? adding() : fields;
  return el("div", { class: "note stack" }, el("p", { class: "small faint" }, "First row"), textOf(prompt), below);
}

const textOf = (content) => el("p", { class: "text cut-lines" }, typeof content === "string" ? content : JSON.stringify(content));

// The choice of the field with the answer, and the button that makes another file with it.
function adding(draft, file, use, signal) {
  const why = el("p", { class: "small" }, "These rows have no answer to imitate.");
  if (!draft.columns.length || !file || file.bytes > MAX_BYTES) return [why];
  const choice = el("select", { id: "new-answer-field" }, draft.columns.map((name) => el("option", { value: name }, name)));
  choice.value = ANSWER_NAMES.find((name) => draft.columns.includes(name)) ?? draft.columns[0];
  const problem = el("div");
  const add = button("Add it to each row", async () => {
    add.disabled = true;
    try {
      use(await withAnswers(file, choice.value, signal));
    } catch (error) {
      if (!signal.aborted) failed(problem, error);
      add.disabled = false;
    }
  });
  return [why, el("div", { class: "field" }, el("label", { for: choice.id }, "Field with the answer"), choice),
    el("div", { class: "row" }, add, el("span", { class: "hint" }, "Makes another file; this one stays for GRPO.")), problem];
}

async function withAnswers(file, name, signal) {
  const text = await (await request(`/v1/files/${file.id}/content`, { signal })).text();
  const lines = text.split("\n").filter((line) => line.trim());
  const rows = lines.map((line) => `${JSON.stringify(imitated(JSON.parse(line), name))}\n`);
  return upload(new File(rows, file.filename.replace(/(\.jsonl)?$/, "-imitate.jsonl"), { type: "application/jsonl" }), { signal });
}
