// The grader on rows of the training file: a reward for each row, and how often each reward occurs.

import { get, post } from "../../api.js";
import { markLine } from "../../code_editor.js";
import { pathOf } from "../../csv.js";
import { announce, button, counted, el, failed, field, number, quoted } from "../../dom.js";
import { explanations, prints } from "../../explanations.js";
import { idOf } from "./fields.js";

const ROWS = 20;
const AT_ONCE = 3; // the service runs at most four graders of a tenant at once
const BINS = 10;
const RUN = "/v1/fine_tuning/alpha/graders/run";

// `at`: the path of the grader in the draft.
export function graderTrial(draft, at, signal) {
  const usual = () => `{{${pathOf(draft.answer ?? "answer")}}}`;
  const answer = el("input", { id: "trial-answer", list: "row-fields", autocomplete: "off", spellcheck: "false", value: usual() });
  let before = answer.value;
  draft.listen(() => { // of other rows, until a person changes it
    if (answer.value === before) answer.value = usual();
    before = usual();
  });
  const result = el("div", { class: "stack" });
  let doing = null;
  const start = button("Test on rows", async () => {
    doing = new AbortController();
    start.hidden = !(stop.hidden = false);
    await tested(draft, at, answer.value, result, AbortSignal.any([signal, doing.signal]));
    start.hidden = !(stop.hidden = true);
  });
  const stop = button("Cancel", () => doing.abort(), { hidden: true });
  return el("details", {}, el("summary", {}, "Test this grader on rows"),
    el("div", { class: "stack trial" },
      field("Answer", answer,
        el("p", { class: "hint" }, `What the model would answer. {{item.NAME}} is replaced with that field of the row; the first ${ROWS} rows are scored.`)),
      el("div", { class: "row" }, start, stop), result));
}

async function tested(draft, at, template, box, signal) {
  const file = draft.body.training_file;
  if (!file) return box.replaceChildren(el("p", { class: "problem" }, "Choose a training file first."));
  const grader = structuredClone(draft.get(at));
  const scored = [];
  try {
    const { rows } = await get(`/v1/files/${file}/preview`, { query: { limit: ROWS }, signal });
    for (let first = 0; first < rows.length; first += AT_ONCE) {
      const part = rows.slice(first, first + AT_ONCE);
      scored.push(...(await Promise.all(part.map((row) => scoredRow(grader, row, template, signal)))));
      box.replaceChildren(el("p", { class: "hint", role: "status" }, `${scored.length} of ${rows.length} rows`));
    }
    box.replaceChildren(...shown(scored));
    markSource(at, scored.flatMap((one) => Object.values(one.grader_errors))[0]?.message ?? "");
    announce(`${counted(scored.length, "row")} scored`);
  } catch (error) {
    if (signal.aborted) box.replaceChildren(el("p", { class: "hint" }, "Cancelled."));
    else {
      failed(box, error);
      markSource(at, error.message);
    }
  }
}

const markSource = (at, text) => markLine(document.getElementById(idOf(`${at}.source`)), text);

async function scoredRow(grader, row, template, signal) {
  const { messages, tools, ...item } = row;
  const fields = new Map(Object.entries(item).map(([name, value]) => [pathOf(name), value]));
  const sample = template.replace(/\{\{\s*(item[^{}]*?)\s*\}\}/g, (whole, path) => (fields.has(path) ? textOf(fields.get(path)) : whole));
  return { sample, ...(await post(RUN, { grader, model_sample: sample, item }, { signal })) };
}

const textOf = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function shown(scored) {
  const rewards = scored.filter((one) => one.scorable).map((one) => one.reward);
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length;
  const unscored = scored.length - rewards.length;
  return [
    el("p", {}, rewards.length ? `Mean reward ${number(mean)} over ${counted(rewards.length, "row")}.` : "",
      unscored > 0 && el("span", { class: "problem" }, ` ${counted(unscored, "row")} cannot be scored.`)),
    rewards.length > 0 && histogram(rewards),
    el("details", { open: unscored > 0 }, el("summary", {}, "Rows"),
      el("ol", { class: "trial-rows" }, scored.map((...one) => el("li", {}, row(...one))))),
  ].filter(Boolean);
}

// A message that an earlier row has is not repeated.
function row(one, at, scored) {
  return [
    el("b", { class: "numeric" }, one.scorable ? number(one.reward) : "error"), " ",
    el("span", { class: "text cut-lines" }, one.sample || "(empty)"),
    Object.values(one.grader_errors).map(({ message }) => el("div", { class: "problem" },
      scored.findIndex((other) => Object.values(other.grader_errors).some((error) => error.message === message)) < at
        ? "The same error as above." : quoted(message))),
    explanations(one.explanations),
    prints(one.printed),
  ];
}

// Bars of the number of rows by reward, from the smallest to the largest (0 to 1 if all are within).
function histogram(rewards) {
  const [low, high] = [Math.min(0, ...rewards), Math.max(1, ...rewards)];
  const counts = Array.from({ length: BINS }, () => 0);
  for (const reward of rewards) counts[Math.min(BINS - 1, Math.floor((BINS * (reward - low)) / (high - low)))] += 1;
  const edge = (bin) => number(low + (bin * (high - low)) / BINS);
  const label = counts.flatMap((count, bin) => (count ? [`${count} from ${edge(bin)} to ${edge(bin + 1)}`] : []));
  return el("figure", { class: "histogram", role: "img", "aria-label": `Rows by reward: ${label.join(", ")}` },
    counts.map((count) => el("i", { style: { height: `${(100 * count) / rewards.length}%` } })),
    el("figcaption", {}, el("span", {}, number(low)), el("span", {}, number(high))));
}
