// A new job: choose, check, probe, start. `#/new?from=<job id>` starts with that job's request, and
// `patch=<JSON>` applies a change to it, or to the kept draft. `#/new?after=<job id>` continues with GRPO from the model
// of a supervised job.

import { can } from "../../access.js";
import { styled } from "../../address.js";
import { get, JOBS, paged, pause } from "../../api.js";
import { button, el, empty, heading, loading } from "../../dom.js";
import { namesOfJobs } from "../../job_names.js";
import { jobName } from "../../job_parts.js";
import { leaves, settingLabel, settingValue } from "../../labels.js";
import { actions } from "./actions.js";
import { waysToAdd } from "../models/adding.js";
import { blank, changed, continuationOf, draftOf, keptDraft, requestOf } from "./draft.js";
import { dataPart, focusField, methodParts, modelPart } from "./form.js";
import { holdOut } from "./held_out.js";
import { counterpartIn } from "./rows.js";

const SHOWN_FILES = 100;
const POLL_SECONDS = 2;

export async function show(root, params, signal) {
  styled("new");
  const from = params.query.get("from");
  const after = params.query.get("after");
  const patch = JSON.parse(params.query.get("patch") ?? "{}");
  let draft;
  const reset = button("Reset", () => draft.replace({ ...blank(), model: models.data[0].id }), { kind: "quiet" });
  reset.hidden = true;
  const origin = el("a", { href: `#/jobs/${from ?? after}` }, from ?? after);
  root.append(heading("New job", {
    below: (from || after) && el("p", { class: "hint" }, after ? "GRPO from the model of " : "A copy of ", origin, ...changesIn(patch), "."),
    actions: [reset],
  }));
  const box = root.appendChild(el("div"));
  loading(box, "Loading models and files");
  let [models, files, job, names] = await Promise.all([
    get("/v1/models", { signal }),
    paged("/v1/files", { purpose: "fine-tune", limit: SHOWN_FILES }, { signal }).next(),
    from || after ? get(`${JOBS}/${from ?? after}`, { signal }) : null,
    namesOfJobs(signal),
  ]);
  if (job) origin.textContent = jobName(job);
  if (models.data.length === 0) models = await firstModels(box, models.hub_models, signal);
  const start = after ? continuationOf(job, counterpartIn(files)) : job ? requestOf(job) : keptDraft() ?? { ...blank(), model: models.data[0].id };
  draft = draftOf(changed(start, patch));
  if (start.training_file && !after) draft.guessed = null; // its grader was chosen for these rows
  if (patch.training_file) holdOut(draft, ...[patch, start].map((one) => files.find((file) => file.id === one.training_file)));
  const form = el("form", { class: "parts", onsubmit: (event) => event.preventDefault() },
    modelPart(draft, models.data, names), dataPart(draft, files, signal), methodParts(draft, models.data, signal));
  box.replaceChildren(form, actions(draft, form, signal));
  box.className = "new-job";
  reset.hidden = false;
  if (params.query.has("field")) focusField(params.query.get("field"));
}

function changesIn(patch) {
  const shown = [...leaves(patch)].map(([path, value]) => `${settingLabel(path)} ${settingValue(value)}`);
  return shown.length ? [" with this change: ", el("strong", {}, shown.join(", "))] : [];
}

// How to add a model, until there is one.
async function firstModels(box, hub, signal) {
  empty(box, "No model yet", "Training starts from a base model. Add one; this page continues when it is there:", waysToAdd({ hub: hub && can.write, added: () => {}, signal }));
  for (;;) {
    await pause(POLL_SECONDS, signal);
    const models = await get("/v1/models", { signal }).catch((error) => {
      if (error.status !== 0) throw error;
    });
    if (models?.data.length) return models;
  }
}
