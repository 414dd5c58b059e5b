// Files: datasets with their sizes; upload, rename, delete. `#/files/<id>` shows the rows of one (`file.js`).

import { styled } from "../../address.js";
import { can } from "../../access.js";
import { paged } from "../../api.js";
import { addRows, ago, bytes, el, empty, failed, heading, loading, moreButton, number, table } from "../../dom.js";
import { uploader } from "../../uploads.js";
import { fileActions } from "./actions.js";
import { showFile } from "./file.js";

const PAGE_SIZE = 50;

export async function show(root, params, signal) {
  styled("files");
  if (params.id) return showFile(root, params.id, signal);
  const list = el("div", { class: "stack" });
  const load = () => showList(list, signal, load);
  root.append(
    heading("Files", { below: el("p", { class: "hint" }, "Datasets for training and evaluation. The same bytes are stored once.") }),
    ...(can.write ? [uploader({ id: "files-upload", signal, onUploaded: load })] : []),
    list);
  return load();
}

async function showList(box, signal, reload) {
  if (!box.hasChildNodes()) loading(box, "Loading files");
  const pages = paged("/v1/files", { purpose: "fine-tune", limit: PAGE_SIZE }, { signal });
  try {
    const files = await pages.next();
    if (!files.length) return empty(box, "No file yet", "Upload a JSONL or CSV file. Its rows are checked before they are stored.");
    const rows = files.map((file) => rowOf(file, signal, reload));
    const more = moreButton("More files", async () => {
      const next = await pages.next().catch((error) => failed(box, error, reload));
      const fresh = (next ?? []).map((file) => rowOf(file, signal, reload));
      addRows(listed, fresh);
      more.hidden = !pages.hasMore;
      return fresh[0]?.querySelector("a");
    }, { hidden: !pages.hasMore });
    const listed = table("Files", ["Name", "Rows", "Size", "Uploaded", ...(can.write ? ["Actions"] : [])], rows, "files cards");
    box.replaceChildren(listed, more);
  } catch (error) {
    if (!signal.aborted) failed(box, error, reload);
  }
}

function rowOf(file, signal, reload) {
  return el("tr", {},
    el("th", { scope: "row" }, el("a", { href: `#/files/${file.id}` }, file.filename)),
    el("td", { class: "numeric" }, number(file.num_rows)),
    el("td", { class: "numeric" }, bytes(file.bytes)),
    el("td", {}, ago(file.created_at)),
    can.write && el("td", {}, el("div", { class: "actions" },
      fileActions(file, { signal, kind: "small", onRenamed: reload, onDeleted: reload }))));
}
