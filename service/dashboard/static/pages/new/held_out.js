// Held-out rows: none, a part of the training file, or a file of their own.

import { el } from "../../dom.js";
import { uploader } from "../../uploads.js";
import { field, select } from "./fields.js";

const WAYS = [["none", "None"], ["split", "Part of the training file"], ["file", "Own file"]];
const FIRST_SPLIT = 0.1;
const UNITS = [["%", "% of the rows"], ["rows", "rows"]];

// `use(file)` makes an uploaded file the validation file.
export function heldOutParts(draft, files, signal, use) {
  const way = el("select", {}, WAYS.map(([value, text]) => el("option", { value }, text)));
  const split = splitField(draft);
  const file = fileField(draft, files, signal, use);
  const draw = () => {
    const { validation_file: own, validation_split: part } = draft.body;
    way.value = part !== undefined ? "split" : own !== undefined ? "file" : "none";
    split.hidden = way.value !== "split";
    file.hidden = way.value !== "file";
  };
  way.addEventListener("change", () => {
    const { validation_file: _file, validation_split: _split, ...rest } = draft.body;
    const chosen = { none: {}, split: { validation_split: FIRST_SPLIT }, file: { validation_file: "" } };
    draft.replace({ ...rest, ...chosen[way.value] });
  });
  draft.listen(draw);
  draw();
  return [
    field("held_out", "Held-out rows", "Rows that are not used for training. They show whether the model generalizes.", way),
    split, file,
  ];
}

function fileField(draft, files, signal, use) {
  const choice = select(draft, "validation_file", [["", files.length ? "Choose a file" : "No file yet. Upload one."],
    ...files.map((file) => [file.id, file.filename])], (id) => id);
  choice.dataset.files = "";
  return field("validation_file", "Held-out file", null, choice,
    uploader({ id: "new-held-out-upload", label: "Upload held-out rows", signal, onUploaded: use }));
}

// A share in percent, or a whole number of rows.
function splitField(draft) {
  const amount = el("input", { type: "number", min: 0, step: "any", inputmode: "decimal", autocomplete: "off" });
  const unit = el("select", { "aria-label": "Unit of the held-out part" }, UNITS.map(([value, text]) => el("option", { value }, text)));
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
  draft.listen(write);
  write();
  const box = field("validation_split", "Held-out part", "Drawn with the seed. Rows with the same prompt stay together.", amount);
  const together = el("div", { class: "row split-amount" });
  amount.before(together);
  together.append(amount, unit);
  return box;
}
