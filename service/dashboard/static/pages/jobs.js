// The list of jobs.

import { get, JOBS } from "../api.js";
import { el, heading, loading } from "../dom.js";

export async function show(root, params, signal) {
  root.append(heading("Jobs"));
  const box = root.appendChild(el("div"));
  loading(box, "Loading jobs");
  const page = await get(JOBS, { signal });
  box.replaceChildren(el("ul", {}, page.data.map((job) =>
    el("li", {}, el("a", { href: `#/jobs/${job.id}` }, job.suffix ?? job.id), " ", job.status))));
}
