// Rename and delete: dialogs and requests that the list and a file's page share.

import { patch, remove } from "../../api.js";
import { announce, button, confirmed, el, field, openDialog, showMessage } from "../../dom.js";

export const filePath = (id) => `/v1/files/${encodeURIComponent(id)}`;

// The buttons of one file. `onRenamed(file)` and `onDeleted()` follow a success.
export function fileActions(file, { signal, onRenamed, onDeleted, kind = "" }) {
  const about = { "aria-label": `Rename ${file.filename}` };
  return [
    button("Rename", () => renamed(file, signal, onRenamed), { kind, ...about }),
    button("Delete", () => deleted(file, signal, onDeleted), { kind: `danger ${kind}`, "aria-label": `Delete ${file.filename}` }),
  ];
}

function renamed(file, signal, onRenamed) {
  const name = el("input", { id: "file-name", type: "text", value: file.filename, maxlength: 255, autocomplete: "off", "aria-describedby": "file-name-problem" });
  const problem = el("p", { class: "problem small", id: "file-name-problem", role: "alert" });
  const submit = async (event) => {
    event.preventDefault();
    try {
      const stored = await patch(filePath(file.id), { filename: name.value }, { signal });
      dialog.close();
      onRenamed(stored);
    } catch (error) {
      name.setAttribute("aria-invalid", "true");
      problem.textContent = error.message;
    }
  };
  const dialog = openDialog("Rename file",
    el("form", { class: "stack", onsubmit: submit },
      field("Name", name, problem),
      el("div", { class: "actions" },
        button("Cancel", () => dialog.close()),
        el("button", { type: "submit", class: "primary" }, "Rename"))));
  name.select();
}

async function deleted(file, signal, onDeleted) {
  const detail = "Its rows cannot be restored. Finished jobs keep their results; their rollouts lose the rows' fields.";
  if (!(await confirmed(`Delete ${file.filename}?`, { detail, yes: "Delete", no: "Keep" }))) return;
  try {
    await remove(filePath(file.id), { signal });
    announce(`${file.filename} deleted`);
    onDeleted();
  } catch (error) {
    if (!signal.aborted) showMessage(`${file.filename} was not deleted`, error.message);
  }
}
