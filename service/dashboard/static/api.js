// The public API as the pages use it: everything is imported from here.

import { get } from "./http.js";
import { jobPath } from "./paths.js";

export * from "./http.js";
export * from "./paths.js";
export { follow } from "./stream.js";
export { download, save, upload } from "./transfer.js";

// All metric rows of a job, evenly thinned to at most `points`; `names`: only these.
export async function metricsOf(id, { names, points = 1000, afterStep, signal } = {}) {
  const query = { names: names?.join(","), max_points: points, after_step: afterStep };
  return (await get(jobPath(id, "/metrics"), { query, signal })).data;
}
