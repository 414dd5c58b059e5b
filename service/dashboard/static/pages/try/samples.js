// A few rows of a job's data as prompts to try: held-out rows and training rows.

import { get, jobPath } from "../../api.js";
import { button, el } from "../../dom.js";

const SHOWN = 4; // of each kind
const READ = 12; // rows of several turns are left out
const MOST_EVALUATED = 100; // groups; all of the held-out rows that are left out of the training rows
const LONGEST_LABEL = 60;

// → rows of buttons that call `use({system, prompt})`; empty if the job's data cannot be read.
export async function samplesOf(jobId, use, signal) {
  const job = await readable(get(jobPath(jobId), { signal }), signal);
  if (!job) return [];
  const [heldOut, training] = await Promise.all([heldOutRows(job, signal), rowsOf(job.training_file, signal)]);
  const known = new Set(heldOut.map(({ prompt }) => prompt)); // a split file has both kinds
  return [
    labelled("Held-out rows", heldOut.slice(0, SHOWN), use),
    labelled("Training rows", training.filter(({ prompt }) => !known.has(prompt)).slice(0, SHOWN), use),
  ].filter(Boolean);
}

function labelled(label, samples, use) {
  return samples.length > 0 && el("div", { class: "row" }, el("span", { class: "hint" }, `${label}:`),
    samples.map((sample) => button(shortened(sample.prompt), () => use(sample), { kind: "small", title: sample.prompt })));
}

const rowsOf = async (file, signal) => {
  const preview = await readable(get(`/v1/files/${file}/preview`, { query: { limit: READ }, signal }), signal);
  return (preview?.rows ?? []).map(sampleOf).filter(Boolean);
};

// Those of the file or, if they are a part of the training file, those that were evaluated.
async function heldOutRows(job, signal) {
  if (job.validation_file) return rowsOf(job.validation_file, signal);
  if (!job.validation_split) return [];
  const query = { split: "validation", limit: MOST_EVALUATED };
  const page = await readable(get(jobPath(job.id, "/rollouts"), { query, signal }), signal);
  const samples = (page?.data ?? []).map(sampleOf).filter(Boolean);
  return [...new Map(samples.map((one) => [one.prompt, one])).values()];
}

// The answer; null if the service refuses it, for example for a deleted file: samples are a help only.
async function readable(answer, signal) {
  return answer.catch((error) => {
    if (signal.aborted || error.status === undefined) throw error;
    return null;
  });
}

// null: the row has more turns than one question.
function sampleOf({ messages, prompt }) {
  if (typeof prompt === "string" && !messages?.length) return { system: "", prompt };
  const question = messages?.at(-1)?.role === "assistant" ? messages.slice(0, -1) : messages ?? [];
  const [first, ...rest] = question[0]?.role === "system" ? question : [{ content: "" }, ...question];
  const isPlain = rest.length === 1 && [first, rest[0]].every((turn) => typeof turn.content === "string");
  return isPlain ? { system: first.content, prompt: rest[0].content } : null;
}

function shortened(text) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > LONGEST_LABEL ? `${line.slice(0, LONGEST_LABEL - 1)}…` : line;
}
