// Names of the newest jobs, for pages that list models of jobs.

import { get, JOBS } from "./api.js";
import { jobName } from "./job_parts.js";

const MOST_NAMED = 100;

// Job id → name, of jobs that have one. Names are a help only: without them the ids remain.
export async function namesOfJobs(signal) {
  const page = await get(JOBS, { query: { limit: MOST_NAMED }, signal }).catch(() => ({ data: [] }));
  return new Map(page.data.filter((job) => jobName(job) !== job.id).map((job) => [job.id, jobName(job)]));
}
