// Addresses of jobs and probes, in one place.

export const JOBS = "/v1/fine_tuning/jobs";
export const PROBES = "/v1/fine_tuning/probes";
export const jobPath = (id, rest = "") => `${JOBS}/${encodeURIComponent(id)}${rest}`;
