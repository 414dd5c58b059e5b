// Where a job's model comes from, base → job → job, and the names of its files; all as links.

import { can } from "../../access.js";
import { get, jobPath } from "../../api.js";
import { el } from "../../dom.js";
import { jobOf, modelName } from "../../job_names.js";
import { jobName } from "../../job_parts.js";

const LONGEST = 5;

// "tiny → warm-up → sums": `root` is filled as the jobs are found.
export class Lineage {
  constructor(job, signal) {
    this.signal = signal;
    this.root = el("span", { class: "lineage" }, el("span", {}, modelName(job.model)));
    if (can.browse) this.follow(job);
  }

  async follow(job) {
    const chain = [];
    try {
      for (let model = job.model; chain.length < LONGEST; ) {
        const parent = jobOf(model) && (await this.found(jobOf(model)));
        chain.unshift(parent ? el("a", { href: `#/jobs/${parent.id}`, title: model }, jobName(parent))
          : el("span", { title: model }, modelName(model)));
        if (!parent) break;
        model = parent.model;
      }
    } catch {
      return; // the page was left, or the service is away: the model's own name is shown
    }
    this.root.replaceChildren(...chain.flatMap((one) => [one, step()]).slice(0, -1));
  }

  // The job that made a model; null if it was deleted, or is another tenant's.
  async found(id) {
    return get(jobPath(id), { signal: this.signal }).catch((error) => {
      if (error.status === 404) return null;
      throw error;
    });
  }
}

const step = () => el("span", { class: "arrow", role: "img", "aria-label": "then" });

// A file's name as a link to the page of files.
export function fileLink(id, signal) {
  if (!can.browse) return id;
  const link = el("a", { href: `#/files/${encodeURIComponent(id)}`, title: id }, id);
  get(`/v1/files/${id}`, { signal }).then((file) => { link.textContent = file.filename; }, () => {});
  return link;
}
