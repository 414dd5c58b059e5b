// The list of jobs: newest first, live, by status and metadata, and a choice of several to compare.

import { replaceQuery, styled } from "../../address.js";
import { get, JOBS, paged, pause } from "../../api.js";
import { announce, button, el, empty, failed, heading, loading } from "../../dom.js";
import { jobRow } from "./row.js";

const PAGE = 20;
const MOST = 100;
const REFRESH_SECONDS = 3;
const STATUSES = ["running", "queued", "paused", "succeeded", "failed", "cancelled"];
const COLUMNS = ["Job", "Status", "Progress", "Reward or loss", "Created"];

export async function show(root, params, signal) {
  const list = new JobList(params.query, signal);
  root.append(heading("Jobs", { actions: [list.compare, newJob()] }), list.filters(), list.box);
  await styled("jobs");
  await list.load();
  await list.stayFresh();
}

const newJob = () => el("a", { class: "button primary", href: "#/new" }, "New job");

class JobList {
  constructor(query, signal) {
    this.signal = signal;
    this.labels = query.getAll("metadata");
    this.status = query.get("status") ?? "";
    this.rows = new Map();
    this.box = el("div");
    this.compare = button("Compare", () => this.goCompare(), { disabled: true });
    this.body = el("tbody", { role: "rowgroup" });
    this.more = button("Load more", () => this.loadMore());
    this.none = el("div");
    this.panel = this.table();
    this.query = { limit: PAGE, ...Object.fromEntries(this.labels.map(asParameter)) };
    this.pages = paged(JOBS, this.query, { signal });
  }

  // ---- filters

  filters() {
    const status = el("select", { id: "status", onchange: (event) => this.choose(event.target.value) },
      el("option", { value: "" }, "All"),
      STATUSES.map((name) => el("option", { value: name, selected: name === this.status }, name)));
    const input = el("input", {
      id: "metadata", placeholder: "key=value", size: 18, pattern: ".+=.*", title: "key=value", required: true,
    });
    const form = el("form", { class: "row", onsubmit: (event) => {
      event.preventDefault();
      narrow([...this.labels, input.value.trim()]);
    } }, el("label", { for: "metadata" }, "Metadata"), input, button("Add", null, { type: "submit" }));
    const chosen = this.labels.map((label) => button(`${label} ×`, () =>
      narrow(this.labels.filter((other) => other !== label)), { kind: "chip", "aria-label": `Remove ${label}` }));
    return el("div", { class: "row filters" },
      el("div", { class: "row" }, el("label", { for: "status" }, "Status"), status), form, chosen);
  }

  choose(status) {
    this.status = status;
    replaceQuery({ status });
    this.arrange();
  }

  // ---- the list

  async load() {
    loading(this.box, "Loading jobs");
    this.take(await this.pages.next());
    if (!this.rows.size) return this.showEmpty();
    this.box.replaceChildren(this.panel, this.none, el("div", { class: "row more" }, this.more));
    this.arrange();
  }

  async loadMore() {
    this.more.disabled = true;
    try {
      const jobs = await this.pages.next();
      this.take(jobs);
      announce(`${jobs.length} more jobs`);
    } catch (error) {
      if (!this.signal.aborted) failed(this.none, error);
    }
    this.more.disabled = false;
    this.arrange();
  }

  showEmpty() {
    if (this.labels.length) {
      empty(this.box, "No jobs with this metadata", `Filter: ${this.labels.join(", ")}.`,
        button("Show all jobs", () => narrow([])));
    } else {
      empty(this.box, "No jobs yet",
        "Create a job here, over the API, with grpo submit, or with the openai client.",
        newJob());
    }
  }

  table() {
    return el("div", { class: "panel flush" }, el("table", { class: "list jobs", role: "table" },
      el("caption", { class: "unseen" }, "Jobs, newest first"),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" },
        el("th", { scope: "col", role: "columnheader" }, el("span", { class: "unseen" }, "Compare")),
        COLUMNS.map((name) => el("th", { scope: "col", role: "columnheader" }, name)))),
      this.body));
  }

  take(jobs) {
    for (const job of jobs) {
      const listed = this.rows.get(job.id);
      if (listed) listed.update(job);
      else this.rows.set(job.id, jobRow(job, { signal: this.signal, chosen: () => this.count(), narrow: (label) =>
        narrow([...new Set([...this.labels, label])]) }));
    }
  }

  // Newest first; jobs of another status are hidden.
  arrange() {
    const ordered = [...this.rows.values()].sort((a, b) => b.job.created_at - a.job.created_at);
    const wanted = ordered.filter((row) => !this.status || row.job.status === this.status);
    const shown = [...this.body.children];
    if (shown.length !== wanted.length || wanted.some((row, at) => row.root !== shown[at])) {
      this.body.replaceChildren(...wanted.map((row) => row.root));
    }
    this.more.hidden = !this.pages.hasMore;
    this.panel.hidden = !wanted.length;
    if (wanted.length) this.none.replaceChildren();
    else empty(this.none, `None of the ${this.rows.size} loaded jobs is ${this.status}`);
  }

  // ---- live

  async stayFresh() {
    for (;;) {
      await pause(REFRESH_SECONDS, this.signal);
      if (document.hidden) continue;
      await this.refresh();
    }
  }

  async refresh() {
    const limit = Math.min(MOST, Math.max(PAGE, this.rows.size));
    let page;
    try {
      page = await get(JOBS, { query: { ...this.query, limit }, signal: this.signal });
    } catch (error) {
      if (this.signal.aborted) throw error;
      failed(this.none, error);
      return;
    }
    if (!page.data.length) return;
    const wasEmpty = !this.rows.size;
    this.take(page.data);
    if (wasEmpty) await this.load();
    else this.arrange();
  }

  // ---- comparing

  count() {
    const number = this.selected().length;
    this.compare.disabled = number < 2;
    this.compare.textContent = number ? `Compare ${number} jobs` : "Compare";
    this.compare.classList.toggle("primary", number > 1);
  }

  selected() {
    return [...this.rows.values()].filter((row) => row.isChosen());
  }

  goCompare() {
    location.hash = `#/compare?jobs=${this.selected().map((row) => row.job.id).join(",")}`;
  }
}

function asParameter(label) {
  const at = label.indexOf("=");
  return [`metadata[${label.slice(0, at)}]`, label.slice(at + 1)];
}

function narrow(labels) {
  const query = new URLSearchParams(labels.map((label) => ["metadata", label])).toString();
  location.hash = query ? `#/jobs?${query}` : "#/jobs";
}
