// Names of jobs and of the models that they made, for pages that list models.

import { get, JOBS } from "./api.js";
import { givenName } from "./job_parts.js";

const MOST_NAMED = 100;

// Job id → name, of the newest jobs that have one. Names are a help only: without them the ids remain.
export async function namesOfJobs(signal) {
  const page = await get(JOBS, { query: { limit: MOST_NAMED }, signal }).catch(() => ({ data: [] }));
  return namesIn(page.data);
}

export const namesIn = (jobs) => new Map(jobs.filter(givenName).map((job) => [job.id, givenName(job)]));

// ft:<base>:<organisation>:<suffix>:<id>, or its checkpoint → the id of the job that made it; null: a base model.
export function jobOf(model) {
  const [prefix, , , , id] = model.split(":");
  return prefix === "ft" && id ? `ftjob-${id}` : null;
}

// The name of a model for people: its job's name, if `names` has one, or its suffix, with a checkpoint's step: "sums,
// step 40".
export function modelName(model, names = new Map()) {
  const name = jobOf(model) && (names.get(jobOf(model)) ?? model.split(":")[3]);
  const step = /:ckpt-step-(\d+)$/.exec(model)?.[1];
  return name ? `${name}${step ? `, step ${step}` : ""}` : model;
}
