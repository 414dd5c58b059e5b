// A job's downloadable files as labels and paths. Boundary: no elements.

import { jobPath } from "../../api.js";

// → [{label, path, query, isExport, isWeights}], the weights at the end of training first. An export is created at its
// path, and downloaded once it has succeeded.
export function downloads(job) {
  const path = (rest) => jobPath(job.id, rest);
  const kinds = new Set(job.artifacts.map((artifact) => artifact.kind));
  const found = [];
  if (kinds.has("adapter")) found.push({ label: "Adapter", path: path("/adapter"), isWeights: true });
  if (kinds.has("adapter")) found.push({ label: "Merged model", path: path("/exports"), isExport: true });
  if (kinds.has("model")) found.push({ label: "Model", path: path("/adapter"), isWeights: true });
  if (job.eval.best?.checkpoint) {
    found.push({ label: "Best adapter", path: path("/adapter"), query: { which: "best" } });
  }
  if (job.progress.step > 0) found.push({ label: "Metrics (CSV)", path: path("/metrics.csv") });
  if (job.progress.step > 0 && job.method.type === "reinforcement") {
    found.push({ label: "Rollouts (JSONL)", path: path("/rollouts.jsonl") });
  }
  return found;
}
