// Held-out rows: none, a part of the training file, or a file of their own.

import { counted, el, optionsOf } from "../../dom.js";
import { uploader } from "../../uploads.js";
import { paramField, select } from "./fields.js";

const WAYS = [["none", "None"], ["split", "Part of the training file"], ["file", "Own file"]];
const FIRST_SPLIT = 0.1;
const UNITS = [["%", "% of the rows"], ["rows", "rows"]];
const FEWEST_ROWS = 40; // as the service's warning
const HELD_OUT = { fewest: 50, most: 500, largestShare: 0.25 };
const HINT = "Rows that are not used for training. They show whether the model generalises.";

// The part of a file that the form holds out: a tenth, at least 50 (as findings need) and at most 500 rows, and at most a
// quarter of the file. undefined: the file has too few rows, or their number is unknown.
function usualSplit(rows) {
  if (!(rows >= FEWEST_ROWS)) return undefined;
  const { fewest, most, largestShare } = HELD_OUT;
  const tenth = FIRST_SPLIT * rows;
  if (tenth >= fewest && tenth <= most) return FIRST_SPLIT;
  return Math.floor(Math.min(Math.max(tenth, fewest), most, largestShare * rows));
}

// Gives the training file `file` its usual held-out rows, unless the user has chosen others for `before`, the file
// before it. Both may be undefined.
export function holdOut(draft, file, before) {
  const { validation_file: own, validation_split: part } = draft.body;
  if (own !== undefined || part !== usualSplit(before?.num_rows)) return;
  draft.set("validation_split", usualSplit(file?.num_rows));
}

// `files`: those that the form offers; `use(file)` makes an uploaded file the validation file.
export function heldOutParts(draft, files, signal, use) {
  const way = el("select", {}, optionsOf(WAYS));
  const split = splitField(draft);
  const file = fileField(draft, files, signal, use);
  const draw = () => {
    const { validation_file: own, validation_split: part } = draft.body;
    way.value = part !== undefined ? "split" : own !== undefined ? "file" : "none";
    split.hidden = way.value !== "split";
    file.hidden = way.value !== "file";
    hint.textContent = hintOf(draft, files);
  };
  way.addEventListener("change", () => {
    const { validation_file: _file, validation_split: _split, ...rest } = draft.body;
    const chosen = { none: {}, split: { validation_split: FIRST_SPLIT }, file: { validation_file: "" } };
    draft.replace({ ...rest, ...chosen[way.value] });
  });
  const chosen = paramField("held_out", "Held-out rows", HINT, way);
  const hint = chosen.querySelector(".hint");
  draft.watch(draw);
  return [chosen, split, file];
}

function hintOf({ body }, files) {
  if (body.validation_file !== undefined || body.validation_split !== undefined) return HINT;
  const rows = files.find((file) => file.id === body.training_file)?.num_rows;
  if (typeof rows === "number" && rows < FEWEST_ROWS) return `${counted(rows, "row")} ${rows === 1 ? "is" : "are"} too few to hold some out, so there is no verdict on unseen rows.`;
  return body.training_file ? "Without them there is no verdict on unseen rows." : HINT;
}

function fileField(draft, files, signal, use) {
  const choice = select(draft, "validation_file", [["", files.length ? "Choose a file" : "No file yet. Upload one."],
    ...files.map((file) => [file.id, file.filename])], (id) => id);
  choice.dataset.files = "";
  return paramField("validation_file", "Held-out file", null, choice,
    uploader({ id: "new-held-out-upload", label: "Upload held-out rows", signal, onUploaded: use, imitates: () => draft.type === "supervised" }));
}

// A share in percent, or a whole number of rows.
function splitField(draft) {
  const amount = el("input", { type: "number", min: 0, step: "any", inputmode: "decimal", autocomplete: "off" });
  const unit = el("select", { "aria-label": "Unit of the held-out part" }, optionsOf(UNITS));
  const write = () => {
    const value = draft.body.validation_split;
    if (document.activeElement === amount || typeof value !== "number") return;
    unit.value = value < 1 ? "%" : "rows";
    amount.value = value < 1 ? Number((100 * value).toPrecision(6)) : value;
  };
  const read = () => {
    if (Number.isNaN(amount.valueAsNumber)) return;
    draft.set("validation_split", unit.value === "%" ? Number((amount.valueAsNumber / 100).toPrecision(6)) : amount.valueAsNumber);
  };
  amount.addEventListener("input", read);
  unit.addEventListener("change", () => {
    amount.value = unit.value === "%" ? 10 : 50;
    read();
  });
  draft.watch(write);
  const box = paramField("validation_split", "Held-out part", "Drawn with the seed. Rows with the same prompt stay together.", amount);
  const together = el("div", { class: "row split-amount" });
  amount.before(together);
  together.append(amount, unit);
  return box;
}
