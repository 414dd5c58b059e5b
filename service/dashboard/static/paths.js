// Addresses of jobs, in one place.

export const JOBS = "/v1/fine_tuning/jobs";
export const jobPath = (id, rest = "") => `${JOBS}/${encodeURIComponent(id)}${rest}`;
