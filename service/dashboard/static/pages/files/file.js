// One dataset: its rows as a table, and the lengths of its rows in tokens of a model.

import { can } from "../../access.js";
import { download, get } from "../../api.js";
import { ago, button, bytes, counted, el, failed, field, heading, loading, number, section, table } from "../../dom.js";
import { fileActions, filePath } from "./actions.js";

const FIRST_ROWS = 20;
const MOST_ROWS = 100;

export async function showFile(root, id, signal) {
  const [file, models] = await Promise.all([
    get(filePath(id), { signal }),
    get("/v1/models", { signal }).then((found) => found.data),
  ]);
  const rows = el("div", { class: "stack" });
  const top = el("div");
  const name = (renamed) => top.replaceChildren(title(renamed, signal, name));
  name(file);
  root.append(top, lengths(file, models, signal), section("Rows", rows));
  return showRows(rows, file, FIRST_ROWS, signal);
}

function title(file, signal, onRenamed) {
  const patch = encodeURIComponent(JSON.stringify({ training_file: file.id }));
  const count = file.num_rows === null ? [] : [`${counted(file.num_rows, "row")} · `];
  const problem = el("p", { class: "problem", role: "alert" });
  const save = button("Download", async () => {
    save.disabled = true;
    problem.textContent = "";
    await download(`${filePath(file.id)}/content`, { filename: file.filename, signal }).catch((error) => {
      problem.textContent = error.message;
    });
    save.disabled = false;
  });
  return heading(file.filename, {
    above: el("a", { class: "back", href: "#/files" }, "Files"),
    below: [el("p", { class: "hint" }, count, `${bytes(file.bytes)} · `, ago(file.created_at), " · ", el("code", {}, file.id)), problem],
    actions: [
      can.write && el("a", { class: "button primary", href: `#/new?patch=${patch}` }, "New job"), save,
      can.write && fileActions(file, { signal, onRenamed, onDeleted: () => { location.hash = "#/files"; } }),
    ],
  });
}

// ---- rows

async function showRows(box, file, limit, signal) {
  loading(box, "Loading rows");
  try {
    const found = await get(`${filePath(file.id)}/preview`, { query: { limit }, signal });
    const shown = found.rows.length;
    const columns = ["Row", ...found.columns];
    const lines = found.rows.map((row, at) => el("tr", {},
      el("th", { scope: "row", class: "numeric faint" }, String(at + 1)),
      found.columns.map((name) => el("td", {}, cell(name, row[name])))));
    const more = shown < found.num_rows && shown === limit && limit < MOST_ROWS
      && button(`Show ${Math.min(MOST_ROWS, found.num_rows)} rows`, () => showRows(box, file, MOST_ROWS, signal));
    box.replaceChildren(
      table("First rows", columns, lines, "rows"),
      el("div", { class: "row" }, el("p", { class: "hint" }, `The first ${number(shown)} of ${counted(found.num_rows, "row")}.`), more));
  } catch (error) {
    if (!signal.aborted) failed(box, error, () => showRows(box, file, limit, signal));
  }
}

function cell(name, value) {
  if (value === undefined) return el("span", { class: "faint" }, "–");
  if (name === "messages" && Array.isArray(value)) return value.map(message);
  return text(typeof value === "string" ? value : JSON.stringify(value));
}

function message({ role, content, ...rest }) {
  const more = Object.keys(rest).length ? ` ${JSON.stringify(rest)}` : "";
  return el("div", { class: "message" }, el("span", { class: "tag" }, String(role)),
    text(`${typeof content === "string" ? content : JSON.stringify(content ?? "")}${more}`));
}

const text = (value) => el("div", { class: "text value", tabindex: value.length > 400 ? 0 : undefined }, value);

// ---- lengths

function lengths(file, models, signal) {
  const box = el("div", { "aria-live": "polite" });
  const choice = el("select", { id: "file-model" },
    el("option", { value: "" }, "Choose a model"), models.map((model) => el("option", { value: model.id }, model.id)));
  choice.addEventListener("change", async () => {
    if (!choice.value) return box.replaceChildren();
    loading(box, "Counting tokens");
    try {
      const query = { limit: 1, model: choice.value };
      const { tokens, num_rows: all } = await get(`${filePath(file.id)}/preview`, { query, signal });
      box.replaceChildren(...(tokens ? figures(tokens, all) : [el("p", { class: "hint" }, "This model can read none of the rows.")]));
    } catch (error) {
      if (!signal.aborted) failed(box, error);
    }
  });
  return section("Length", el("div", { class: "panel stack" }, field("Count tokens of", choice), box));
}

function figures(tokens, all) {
  const shown = [["Shortest", tokens.min], ["Median", tokens.median], ["95% up to", tokens.p95], ["Longest", tokens.max]];
  const which = tokens.rows === all ? `all ${counted(all, "row")}` : `${number(tokens.rows)} of ${counted(all, "row")}`;
  return [
    el("dl", { class: "figures" }, shown.map(([label, value]) => el("div", {}, el("dt", {}, label), el("dd", {}, number(value), el("small", {}, "tokens"))))),
    el("p", { class: "hint" }, `Prompts with the chat template, counted in ${which}.`),
  ];
}
