// A place for a dataset: a button and drag and drop, progress, and CSV converted before it is sent.
// Boundary: one file at a time; what follows from it is the page's.

import { upload } from "./api.js";
import { announce, button, counted, el, field, openDialog, percent } from "./dom.js";
import { ANSWER_NAMES, IMITATE, jsonlOf, MAX_BYTES, parsedCsv, rowOf } from "./csv.js";

const PROMPT_NAMES = ["prompt", "question", "input", "instruction", "problem", "text"];
const BY_COMMAND = "The command `grpo files upload` also takes Parquet and larger CSV files.";

// `id`: of the button's input; `onUploaded(file)` receives the stored file. A refused file is named, and
// `onUploaded` is not called. `imitates()`: whether the rows of a CSV file end with the answer to imitate.
export function uploader({ id, label = "Upload a file", signal, onUploaded, imitates = () => false }) {
  const bar = el("i", { style: { width: "0%" } });
  const progress = el("div", { class: "bar", hidden: true }, bar);
  const status = el("p", { class: "hint", role: "status" }, "JSONL, one example a row, or CSV. Drop a file here or choose one.");
  const picker = el("input", { type: "file", accept: ".jsonl,.json,.csv", id, class: "unseen" });
  const say = (text, isProblem = false) => {
    status.className = isProblem ? "problem small" : "hint";
    status.textContent = text;
  };
  const take = async (file) => {
    if (!file || picker.disabled) return;
    picker.disabled = true;
    say(`Reading ${file.name}…`);
    try {
      const sent = await converted(file, imitates());
      if (!sent) return say(`${file.name} was not uploaded.`);
      progress.hidden = false;
      const stored = await upload(sent, { signal, onProgress: (part) => {
        bar.style.width = `${100 * part}%`;
        say(part < 1 ? `Uploading ${sent.name}: ${percent(part)}` : `Checking the rows of ${sent.name}…`);
      } });
      say(uploadedText(sent, stored));
      onUploaded(stored);
    } catch (error) {
      if (signal.aborted) return;
      const reason = error.message.replace(/^file: /, "");
      say(`${file.name} was not uploaded: ${reason}`, true);
      announce(status.textContent);
    } finally {
      progress.hidden = true;
      picker.disabled = false;
      picker.value = "";
    }
  };
  picker.addEventListener("change", () => take(picker.files[0]));
  const box = el("div", { class: "stack drop" },
    el("div", { class: "row" }, picker, el("label", { for: id, class: "button" }, label), status), progress);
  onDrop(box, take);
  return box;
}

function uploadedText(sent, stored) {
  const rows = stored.num_rows === null ? "" : ` ${counted(stored.num_rows, "row")}.`;
  const known = stored.filename === sent.name ? "" : ` These rows are stored already, as ${stored.filename}.`;
  return `${sent.name} uploaded.${rows}${known}`;
}

function onDrop(box, take) {
  const over = (isOver) => (event) => {
    event.preventDefault();
    box.classList.toggle("over", isOver);
  };
  box.addEventListener("dragover", over(true));
  box.addEventListener("dragleave", over(false));
  box.addEventListener("drop", (event) => {
    over(false)(event);
    take(event.dataTransfer.files[0]);
  });
}

// The file itself; a CSV file as JSONL, or null if the user changed their mind.
async function converted(file, imitates) {
  if (/\.(parquet|arrow|xlsx?|tsv)$/i.test(file.name)) throw new Error(`only JSONL and CSV can be uploaded here. ${BY_COMMAND}`);
  if (!/\.csv$/i.test(file.name)) return file;
  if (file.size > MAX_BYTES) throw new Error(`a CSV file of more than 64 MiB is too large for the browser. ${BY_COMMAND}`);
  const csv = parsedCsv(await file.arrayBuffer());
  const chosen = await chosenColumns(file.name, csv, imitates);
  if (!chosen) return null;
  return new File([jsonlOf(csv, chosen)], file.name.replace(/\.csv$/i, imitates ? IMITATE : ".jsonl"), { type: "application/jsonl" });
}

// → {prompt: the column with it, instruction: what precedes each, may be empty, answer: the column to imitate, if any};
// null: cancelled.
function chosenColumns(name, { columns, rows }, imitates) {
  const likely = (names) => names.map((each) => columns.find((column) => column.toLowerCase() === each)).find(Boolean);
  const named = columns.filter(Boolean); // the index of a table that pandas wrote has no name
  const column = (id, initial) => {
    const choice = el("select", { id, onchange: () => draw() }, columns.map((each) => el("option", { value: each }, each || "(no name)")));
    choice.value = initial;
    return choice;
  };
  const prompt = column("csv-prompt", likely(PROMPT_NAMES) ?? named[0] ?? columns[0]);
  const reply = imitates && column("csv-answer", likely(ANSWER_NAMES) ?? named.find((each) => each !== prompt.value) ?? columns[0]);
  const first = el("pre", { class: "code", tabindex: 0, "aria-label": "First row as JSON" });
  const instruction = el("input", { id: "csv-instruction", placeholder: "Answer in one word:", autocomplete: "off" });
  const chosen = () => ({ prompt: prompt.value, instruction: instruction.value.trim(), ...(reply && { answer: reply.value }) });
  const draw = () => { first.textContent = JSON.stringify(rowOf(columns, rows[0], chosen()), null, 2); };
  instruction.addEventListener("input", draw);
  draw();
  return new Promise((resolve) => {
    const dialog = openDialog(`Convert ${name}`, [
      el("p", {}, `${counted(rows.length, "row")}. Which column is the prompt? ${imitates ? "Which one is the answer to imitate?" : "The others are fields for the grader, as text."}`),
      field("Prompt column", prompt),
      reply && field("Answer column", reply),
      field("Instruction", instruction, el("p", { class: "hint" }, "Optional. Precedes the prompt of every row.")),
      el("p", { class: "small faint" }, "First row"), first,
      el("div", { class: "actions" },
        button("Cancel", () => dialog.close("no")),
        button("Upload", () => dialog.close("yes"), { kind: "primary" })),
    ], (answer) => resolve(answer === "yes" ? chosen() : null));
  });
}
