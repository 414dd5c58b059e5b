// The parts of the public API that the pages use; pages import everything from here.

import { ApiError, get, pause, post, request } from "./http.js";
import { jobPath } from "./paths.js";

export * from "./http.js";
export * from "./paths.js";
export { follow } from "./stream.js";
export { download, save, upload } from "./transfer.js";

const PEEK_BYTES = 65_535;
const EXPORT_POLL_SECONDS = 1;

// A JSONL file's first row. Throws SyntaxError for any other kind of file.
export async function firstRow(fileId, { signal }) {
  const answer = await request(`/v1/files/${fileId}/content`, { headers: { Range: `bytes=0-${PEEK_BYTES}` }, signal });
  const [line] = (await answer.text()).split("\n");
  return JSON.parse(line);
}

// All metric rows of a job, evenly thinned to at most `points`; `names`: only these.
export async function metricsOf(id, { names, points, afterStep, beforeStep, signal }) {
  const query = { names: names?.join(","), max_points: points, after_step: afterStep, before_step: beforeStep };
  return (await get(jobPath(id, "/metrics"), { query, signal })).data;
}

// The merged model of a job's final weights: created unless it exists, and awaited. → path of its archive.
// A failed one is an error whose `log` is the export's path.
export async function exported(path, { onPhase, signal }) {
  let made = await post(path, { format: "merged" }, { signal });
  while (made.status === "queued" || made.status === "running") {
    onPhase?.(made.phase);
    await pause(EXPORT_POLL_SECONDS, signal);
    made = await get(`${path}/${made.id}`, { signal });
  }
  if (made.status !== "succeeded") throw Object.assign(new ApiError({ status: 422, ...made.error }), { log: `${path}/${made.id}` });
  return made.content;
}
