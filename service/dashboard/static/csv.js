// CSV → JSONL in the browser, exactly as `grpo files upload` converts it: every cell is a string.
// Boundary: text in, text out; `uploads.js` lets the user choose the column of the prompt.

export const MAX_BYTES = 64 * 2 ** 20;

// End of the name of a file whose rows end with the answer to imitate.
export const IMITATE = "-imitate.jsonl";

// Usual names of the field with the right answer, the likeliest first.
export const ANSWER_NAMES = ["answer", "label", "category", "class", "target", "reference", "expected", "solution", "completion", "response", "output"];

// The path of a row's field in a grader's template: `item.answer`, or `item["the answer"]` for a name with other signs.
export function pathOf(name) {
  return /^[\p{L}_][\p{L}\p{N}_]*$/u.test(name) ? `item.${name}` : `item["${name.replace(/["\\]/g, "\\$&")}"]`;
}

// The bytes of a file → {columns, rows}, each row a list of as many cells. Throws Error naming the line.
export function parsedCsv(bytes) {
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw new Error("it is not UTF-8. Save it as “CSV UTF-8”.");
  }
  const [columns, ...rows] = recordsOf(text);
  if (!columns || rows.length === 0) throw new Error("it has no rows below the names of its columns.");
  refuseColumns(columns.cells);
  for (const { cells, line } of rows) {
    if (cells.length !== columns.cells.length) {
      throw new Error(`line ${line} has ${cells.length} cells, and line 1 has ${columns.cells.length}.`);
    }
  }
  return { columns: columns.cells, rows: rows.map((row) => row.cells) };
}

function refuseColumns(names) {
  if (names.length === 1 && /[;\t]/.test(names[0])) throw new Error("line 1 has no commas. Save it with commas between its cells.");
  const place = names.findIndex((name, at) => names.indexOf(name) !== at);
  if (place >= 0) throw new Error(`line 1: column ${place + 1} ${names[place] ? `repeats the name ${names[place]}` : "has no name either"}.`);
}

// [{cells, line}] of all lines that are not empty; a cell in quotes may contain line breaks.
function recordsOf(text) {
  const records = [];
  const cell = /"([^"]*(?:""[^"]*)*)"(?=,|\r?\n|\r|$)|([^",\r\n][^,\r\n]*|)(?=,|\r?\n|\r|$)/y;
  let at = 0, line = 1, cells = [], start = 1;
  while (at <= text.length) {
    cell.lastIndex = at;
    const found = cell.exec(text);
    if (!found) throw new Error(`line ${line}: a quote is not closed, or text follows it.`);
    cells.push(found[1] === undefined ? found[2] : found[1].replaceAll('""', '"'));
    line += found[0].match(/\r\n|\n|\r/g)?.length ?? 0;
    at = cell.lastIndex;
    if (text[at] === ",") {
      at += 1;
      continue;
    }
    if (cells.length > 1 || found[0] !== "") records.push({ cells, line: start });
    at += text.startsWith("\r\n", at) ? 2 : 1;
    line += 1;
    [cells, start] = [[], line];
  }
  return records;
}

// One JSON object a line: the cell of `prompt` as the user's message, the others under their names. Rows have one
// prompt, so other columns named `prompt` or `messages` are left out. An instruction precedes every prompt; a column
// `answer`, if any, is the assistant's message.
export function jsonlOf({ columns, rows }, parts) {
  return rows.map((cells) => `${JSON.stringify(rowOf(columns, cells, parts))}\n`).join("");
}

export function rowOf(columns, cells, { prompt, instruction, answer }) {
  const cell = (name) => cells[columns.indexOf(name)];
  const others = columns.map((name, at) => [name, cells[at]]).filter(([name]) => ![prompt, answer, "prompt", "messages"].includes(name));
  const content = instruction ? `${instruction}\n${cell(prompt)}` : cell(prompt);
  const reply = answer === undefined ? [] : [{ role: "assistant", content: cell(answer) }];
  return { messages: [{ role: "user", content }, ...reply], ...Object.fromEntries(others) };
}

// A row for GRPO as one for supervised training: its field `name` becomes the assistant's message.
export function withAnswer(row, name) {
  const { messages, prompt, [name]: answer, ...others } = row;
  return { messages: [...(messages ?? [{ role: "user", content: prompt }]), { role: "assistant", content: String(answer) }], ...others };
}

// A row for supervised training as one for GRPO: its last message becomes the field `answer`, if it has none.
export function withoutAnswer({ messages, ...others }) {
  return { messages: messages.slice(0, -1), answer: messages.at(-1).content, ...others };
}
