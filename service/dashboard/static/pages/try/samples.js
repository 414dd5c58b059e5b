// A few rows of a job's data as prompts to try: held-out rows if they are a file, otherwise training rows.

import { get, JOBS } from "../../api.js";
import { button, el } from "../../dom.js";

const SHOWN = 4;
const READ = 12; // rows of several turns are left out
const LONGEST_LABEL = 60;

// → buttons that call `use({system, prompt})`; empty if the job's file cannot be read.
export async function samplesOf(jobId, use, signal) {
  try {
    const job = await get(`${JOBS}/${jobId}`, { signal });
    const { rows } = await get(`/v1/files/${job.validation_file ?? job.training_file}/preview`, { query: { limit: READ }, signal });
    const samples = rows.map(sampleOf).filter(Boolean).slice(0, SHOWN);
    return samples.length ? [el("span", { class: "hint" }, job.validation_file ? "Held-out rows:" : job.validation_split ? "Rows of its file, some of them held out:" : "Training rows:"),
      ...samples.map((sample) => button(shortened(sample.prompt), () => use(sample), { kind: "small", title: sample.prompt }))] : [];
  } catch (error) {
    if (signal.aborted || error.status === undefined) throw error;
    return []; // the file is deleted: samples are a help only
  }
}

// null: the row has more turns than one question.
function sampleOf({ messages, prompt }) {
  if (typeof prompt === "string") return { system: "", prompt };
  const asked = messages?.at(-1)?.role === "assistant" ? messages.slice(0, -1) : messages ?? [];
  const [first, ...rest] = asked[0]?.role === "system" ? asked : [{ content: "" }, ...asked];
  const isPlain = rest.length === 1 && [first, rest[0]].every((turn) => typeof turn.content === "string");
  return isPlain ? { system: first.content, prompt: rest[0].content } : null;
}

function shortened(text) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > LONGEST_LABEL ? `${line.slice(0, LONGEST_LABEL - 1)}…` : line;
}
