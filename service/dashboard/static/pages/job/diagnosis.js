// Why a job failed or learns poorly, by the service's rules: cause, evidence, and a retry with a change.

import { get, jobPath, post } from "../../api.js";
import { announce, button, confirmed, el, failed, section } from "../../dom.js";

const KINDS = { error: "bad", warning: "warn", info: "" };

export class Diagnosis {
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.problem = el("div");
    this.list = el("div");
    this.root = section("Diagnosis", this.problem, this.list);
    this.root.hidden = true;
    this.readAt = 0;
  }

  // Rendered again only if the findings differ, as the user may be reading one.
  // `failure`: is shown above already, and not repeated.
  async load(failure) {
    this.readAt = Date.now();
    this.shown = [failure?.hint, ...(failure?.evidence ?? [])];
    const found = await get(jobPath(this.id, "/diagnosis"), { signal: this.signal });
    const drawn = JSON.stringify(found.findings);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.list.replaceChildren(...found.findings.map((one) => this.finding(one)));
    this.root.hidden = !found.findings.length;
  }

  finding(one) {
    return el("article", { class: `note ${KINDS[one.severity]}` },
      el("p", {}, el("strong", {}, one.cause), " ", el("code", { class: "faint" }, one.code)),
      el("ul", { class: "small" }, one.evidence.filter((line) => !this.shown.includes(line))
        .map((line) => el("li", { class: "text" }, line))),
      one.advice && !this.shown.includes(one.advice) && el("p", {}, one.advice),
      one.field && el("p", { class: "small" }, el("code", {}, one.field), this.change(one)),
      el("div", { class: "row" },
        one.patch && button(one.field ? "Clone with this change" : "Run again", (event) => this.clone(one, event.target)),
        this.form(one),
        one.field?.endsWith(".grader") && el("a", { class: "small", href: `#/grader?job=${this.id}` }, "Open in the grader bench")));
  }

  form({ field, patch }) {
    if (!field && !patch) return null;
    const query = new URLSearchParams({ from: this.id, ...(field && patch && { patch: JSON.stringify(patch) }) });
    return el("a", { class: "small", href: `#/new?${query}` }, query.has("patch") ? "Edit with this change" : "Edit in the form");
  }

  change({ current, suggested }) {
    return suggested === null ? null : ` ${JSON.stringify(current)} → ${JSON.stringify(suggested)}`;
  }

  async clone(one, pressed) {
    const detail = "Creates a new job with the same request and seed. This job does not change.";
    if (!(await confirmed("Run this job again?", { detail, yes: "Run again", no: "Not now", kind: "primary" }))) return;
    pressed.disabled = true;
    this.problem.replaceChildren();
    try {
      const job = await post(jobPath(this.id, "/clone"), one.patch, { signal: this.signal });
      announce("The new job is queued");
      location.hash = `#/jobs/${job.id}`;
    } catch (error) {
      if (!this.signal.aborted) failed(this.problem, error);
    }
    pressed.disabled = false;
  }
}
