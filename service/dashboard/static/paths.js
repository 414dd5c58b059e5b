// Addresses of jobs and probes, in one place: of the service, and of pages.

export const JOBS = "/v1/fine_tuning/jobs";
export const PROBES = "/v1/fine_tuning/probes";
export const jobPlace = (id) => `#/jobs/${id}`;
export const jobPath = (id, rest = "") => `${JOBS}/${encodeURIComponent(id)}${rest}`;
