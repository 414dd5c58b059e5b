// The dialog that changes a job's name, notes, tags and archiving, and deletes it.
// `editJob(job, {changed, deleted})` is all that other pages need.

import { announce, button, confirmed, el, field, openDialog, showMessage } from "../../dom.js";
import { jobPath, patch, remove } from "../../api.js";
import { isOver, jobName } from "../../job_parts.js";

// `changed(job)` gets the saved job, `deleted(id)` the id of the deleted one (default: the list is opened).
export function editJob(job, { changed, deleted = openList }) {
  const name = el("input", { id: "edit-name", maxlength: 128, value: job.name ?? "", placeholder: job.suffix ?? job.id });
  const notes = el("textarea", { id: "edit-notes", maxlength: 4096, rows: 5 });
  notes.value = job.notes ?? "";
  const tags = el("input", { id: "edit-tags", value: job.tags.join(", "), placeholder: "maths, keep" });
  const archived = el("input", { id: "edit-archived", type: "checkbox", checked: job.archived });
  const problem = el("p", { class: "problem", role: "alert" });
  const save = async (event) => {
    event.preventDefault();
    const change = { name: name.value.trim() || null, notes: notes.value || null, tags: parted(tags.value), archived: archived.checked };
    try {
      changed(await patch(jobPath(job.id), change));
      announce("Saved");
      dialog.close();
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  const erase = async () => {
    dialog.close();
    if (await deleteJobs([job])) deleted(job.id);
  };
  const dialog = openDialog("Edit job",
    el("form", { class: "pile", onsubmit: save },
      field("Name", name), field("Notes", notes), field("Tags", tags, el("p", { class: "hint" }, "Separated by commas")),
      el("div", { class: "row" }, archived, el("label", { for: "edit-archived" }, "Archived")),
      problem,
      el("div", { class: "actions" },
        isOver(job) && button("Delete…", erase, { kind: "danger" }),
        button("Cancel", () => dialog.close()),
        button("Save", null, { kind: "primary", type: "submit" }))));
  name.focus();
}

// Deletes finished jobs after a confirmation. → whether all are deleted; a refusal is shown in a dialog.
export async function deleteJobs(jobs) {
  const subject = jobs.length === 1 ? jobName(jobs[0]) : `${jobs.length} jobs`;
  const detail = "Metrics, rollouts, checkpoints and results are deleted too. Datasets stay. This cannot be undone.";
  if (!(await confirmed(`Delete ${subject}?`, { detail, yes: "Delete", no: "Keep" }))) return false;
  try {
    for (const job of jobs) await remove(jobPath(job.id));
    announce(`${subject} deleted`);
    return true;
  } catch (error) {
    showMessage("Not deleted", error.message);
    return false;
  }
}

const parted = (text) => [...new Set(text.split(",").map((tag) => tag.trim()).filter(Boolean))];
const openList = () => (location.hash = "#/jobs");
