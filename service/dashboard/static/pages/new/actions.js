// Check, probe, start: the actions on the request, and their results.

import { get, JOBS, pause, post, PROBES } from "../../api.js";
import { announce, button, el, failed, loading } from "../../dom.js";
import { isOver } from "../../job_parts.js";
import { inWords } from "../../labels.js";
import { forgetDraft, paramOf } from "./draft.js";
import { jsonArea, mark } from "./fields.js";
import { countOf, showCheck, showProbe, showProblems, showProbing } from "./findings.js";
import { focusField } from "./form.js";
import { PastProbes } from "./probes.js";

const isNarrow = matchMedia("(max-width: 900px)"); // as in page.css
const PROMPTS = 16;
const POLL_SECONDS = 0.7;
const MISSING = { training_file: "Choose or upload a file.", validation_file: "Choose or upload a file.", "dataset.task": "Choose a task." };

// `form`: the element whose fields show their own problems.
export function actions(draft, form, signal) {
  const found = el("div", { class: "stack", "aria-live": "polite" });
  const changed = el("p", { class: "hint", hidden: true, role: "status" }, "The request has changed since this result.");
  const page = { draft, form, signal, found, changed, idempotencyKey: newKey() };
  let known = JSON.stringify(draft.body);
  draft.listen(() => {
    const now = JSON.stringify(draft.body);
    if (now === known) return; // a file's first row, read after Check, can set the same grader again
    known = now;
    page.idempotencyKey = newKey(); // another body is another request
    mark(form, new Map());
    changed.hidden = !found.hasChildNodes();
  });
  const ifReadable = (action) => () => run(page, buttons, (doing) => {
    const unread = document.querySelector("textarea[data-unread]");
    if (unread) return unreadable(page, unread);
    const { dataset, training_file: training = "", validation_file: heldOut } = draft.body;
    const rows = dataset ? ["dataset.task", dataset.task ?? ""] : ["training_file", training];
    const unchosen = [rows, ["validation_file", heldOut]].filter(([, value]) => value === "");
    return unchosen.length ? blamed(page, unchosen.map(([param]) => ({ param, message: MISSING[param] }))) : action(page, doing);
  });
  const check = button("Check", ifReadable(checked));
  const probe = button("Probe", ifReadable(probed));
  const start = button("Start", ifReadable(started), { kind: "primary" });
  const buttons = [check, probe, start];
  page.past = new PastProbes((id) => run(page, buttons, (doing) => shownAgain(page, id, doing)), signal);
  const hint = el("p", { class: "hint" });
  const allowProbe = () => {
    probe.hidden = page.past.root.hidden = draft.type !== "reinforcement";
    const check = `Check reads every row${draft.type === "supervised" ? "" : " and tests the grader"}.`;
    hint.textContent = probe.hidden ? check : `${check} Probe samples a few prompts before training.`;
  };
  draft.watch(allowProbe);
  const [json, complaint] = jsonArea(draft, null, { rows: 22, id: "new-json", "aria-label": "Request as JSON" });
  return el("aside", { class: "actions-column stack", "aria-label": "Check and start" },
    el("div", { class: "panel stack" },
      el("div", { class: "row start-bar" }, buttons),
      hint, changed, found),
    page.past.root,
    el("details", { class: "panel" }, el("summary", {}, "Request as JSON"), json, complaint));
}

// Pages without TLS have no randomUUID.
const newKey = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

// One at a time: opening a past probe replaces the one that is watched.
async function run(page, buttons, action) {
  page.doing?.abort();
  const mine = (page.doing = new AbortController());
  const signal = AbortSignal.any([page.signal, mine.signal]);
  page.changed.hidden = true;
  for (const each of buttons) each.disabled = true;
  try {
    await action(signal);
  } catch (error) {
    if (!signal.aborted) refused(page, error);
  }
  if (page.doing !== mine) return;
  for (const each of buttons) each.disabled = false;
  if (isNarrow.matches) page.found.scrollIntoView({ block: "start" }); // the buttons are far above it
}

async function checked(page, signal) {
  loading(page.found, "Checking every row");
  const report = await post(`${JOBS}/validate`, page.draft.body, { signal });
  if (!report.valid) return blamed(page, report.problems);
  page.found.replaceChildren(...showCheck(report).flat());
  announce(report.warnings.length ? "Ready, with warnings" : "Ready to start");
}

async function probed(page, signal) {
  loading(page.found, "Checking every row");
  const probe = await post(PROBES, { ...page.draft.body, probe: { prompts: PROMPTS } }, { signal });
  await watched(page, probe, signal);
}

async function shownAgain(page, id, signal) {
  loading(page.found, "Loading the probe");
  page.found.scrollIntoView({ block: "nearest" });
  await watched(page, await get(`${PROBES}/${id}`, { signal }), signal);
}

// Watches it until it has finished, then shows its result.
async function watched({ found, past, draft }, first, signal) {
  let probe = first;
  let shown;
  const wasOver = isOver(probe);
  const stop = button("Cancel the probe", () => post(`${PROBES}/${probe.id}/cancel`, undefined, { signal }).catch((error) => announce(error.message)));
  if (!wasOver) past.refresh();
  const progress = el("div");
  found.replaceChildren(progress, stop);
  while (!isOver(probe)) {
    const seen = JSON.stringify([probe.progress, probe.phase, probe.queue]);
    if (seen !== shown) progress.replaceChildren(showProbing(probe)); // otherwise screen readers would repeat it
    shown = seen;
    await pause(POLL_SECONDS, signal);
    probe = await get(`${PROBES}/${probe.id}`, { signal });
  }
  found.replaceChildren(showProbe(probe, focusField, draft, signal));
  if (!wasOver || past.showsUnfinished(probe.id)) past.refresh();
}

async function started(page, signal) {
  loading(page.found, "Starting");
  const headers = { "Idempotency-Key": page.idempotencyKey };
  const job = await post(JOBS, page.draft.body, { headers, signal });
  forgetDraft();
  location.hash = `#/jobs/${job.id}`;
}

// A refusal names its fields; any other error is shown unchanged.
function refused(page, error) {
  const listed = error.problems.length ? error.problems : error.param ? [{ param: error.param, message: error.message }] : [];
  if (error.status === 400 && listed.length) blamed(page, listed);
  else failed(page.found, error);
}

// Reports typed text that is not valid JSON; otherwise an older value would be used silently.
function unreadable(page, area) {
  const details = area.closest("details");
  if (details) details.open = true;
  const param = area.labels[0]?.textContent ?? area.getAttribute("aria-label");
  page.found.replaceChildren(showProblems([{ param, message: "invalid JSON; it is not used" }], focusField));
  area.focus();
}

function blamed(page, problems) {
  const params = [...page.form.querySelectorAll("[data-param]")].map((box) => box.dataset.param);
  const placed = problems.map((one) => ({ ...one, field: paramOf(one, params, page.draft) }));
  const messageOf = (one) => inWords(one.message.replace(`${one.field}: `, "")); // it is shown at that field
  const byParam = [...Map.groupBy(placed, (one) => one.field)];
  mark(page.form, new Map(byParam.map(([field, those]) => [field, { messages: those.map(messageOf), count: countOf(those) }])));
  page.found.replaceChildren(showProblems(placed, focusField));
}
