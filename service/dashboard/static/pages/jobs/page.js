// The list of jobs, filtered and sorted by the service, live, with actions for several jobs.

import { styled } from "../../address.js";
import { can } from "../../access.js";
import { JOBS, jobPath, paged, patch, pause } from "../../api.js";
import { announce, button, counted, el, empty, failed, heading, loading, moreButton, showMessage } from "../../dom.js";
import { isOver } from "../../job_parts.js";
import { deleteJobs, editJob } from "../job/edit.js";
import { Filters } from "./filters.js";
import { jobRow } from "./row.js";

const PAGE = 20;
const MOST = 100; // that one request returns
const MOST_COMPARED = 8;
const REFRESH_SECONDS = 3;
// Columns, and the order that their first click selects.
const COLUMNS = [
  ["Job", "name"], ["Status", "status"], ["Progress"], ["Reward or loss"], ["Held-out change", "-held_out"], ["Created", "-created"],
];

export async function show(root, params, signal) {
  const list = new JobList(params.query, signal);
  root.append(heading("Jobs", { actions: [list.actions, newJob()] }), list.filters.root, list.box);
  await styled("jobs");
  await list.load();
  await list.stayFresh();
}

const newJob = () => can.write && el("a", { class: "button primary", href: "#/new" }, "New job");

const STEPS = [
  ["Rows", "a CSV or JSONL file with a prompt and its right answer in each row."],
  ["Grader", "how an answer is scored: exact text, a number, similar text, or your own Python."],
  ["Start", "training shows its reward live; held-out rows show whether the model got better."],
];

function firstSteps() {
  return el("ol", { class: "steps-ahead" }, STEPS.map(([name, text]) => el("li", {}, el("strong", {}, name), ": ", text)));
}

class JobList {
  constructor(query, signal) {
    this.signal = signal;
    this.rows = new Map();
    this.order = []; // ids, as the service orders them
    this.box = el("div");
    this.none = el("div");
    this.body = el("tbody", { role: "rowgroup" });
    this.more = moreButton("Load more", () => this.loadMore());
    this.compare = button("Compare", () => this.goCompare());
    this.archive = button("Archive", () => this.archiveChosen());
    this.remove = button("Delete…", () => this.deleteChosen(), { kind: "danger" });
    this.actions = el("div", { class: "actions", role: "group", "aria-label": "Selected jobs" }, this.compare, can.write && [this.archive, this.remove]);
    this.filters = new Filters(query, () => this.reload(), signal);
    this.panel = this.table();
    this.count();
  }

  // ---- the list

  // `number`: of the newest load; an older one that is answered later changes nothing.
  async load() {
    const number = (this.number = (this.number ?? 0) + 1);
    const pages = paged(JOBS, { limit: PAGE, ...this.filters.query() }, { signal: this.signal });
    if (!this.order.length) loading(this.box, "Loading jobs");
    const jobs = await pages.next();
    if (number !== this.number) return;
    this.pages = pages;
    this.order = [];
    this.take(jobs);
    this.arrange();
  }

  async reload() {
    this.sorting();
    try {
      await this.load();
      announce(this.order.length ? counted(this.order.length, "job") : "No jobs");
    } catch (error) {
      if (!this.signal.aborted) failed(this.box, error, () => this.reload());
    }
  }

  async loadMore() {
    const number = this.number;
    let first = null;
    try {
      const jobs = await this.pages.next();
      if (number === this.number) {
        this.number += 1; // a refresh that has begun would take these jobs away again
        this.take(jobs);
        announce(counted(jobs.length, "more job"));
        first = this.rows.get(jobs[0]?.id);
      }
    } catch (error) {
      if (!this.signal.aborted) failed(this.none, error);
    }
    this.arrange();
    return first?.root.querySelector(".name > a");
  }

  take(jobs) {
    this.filters.see(jobs);
    for (const job of jobs) {
      this.update(job);
      if (!this.order.includes(job.id)) this.order.push(job.id);
    }
  }

  update(job) {
    const listed = this.rows.get(job.id);
    if (listed) return listed.update(job);
    this.rows.set(job.id, jobRow(job, {
      signal: this.signal,
      names: this.filters.names,
      chosen: () => this.count(),
      narrow: (label) => this.filters.narrow([...this.filters.labels, label]),
      tagged: (tag) => this.filters.set({ tag }),
      edit: (listedJob) => editJob(listedJob, { changed: () => this.refresh(), deleted: () => this.refresh() }),
    }));
  }

  arrange() {
    const wanted = this.order.map((id) => this.rows.get(id).root);
    const shown = [...this.body.children];
    if (shown.length !== wanted.length || wanted.some((root, at) => root !== shown[at])) this.body.replaceChildren(...wanted);
    this.more.hidden = !this.pages.hasMore;
    this.filters.root.hidden = !wanted.length && !this.filters.isNarrow;
    if (!wanted.length) this.showEmpty();
    else if (!this.panel.isConnected) this.box.replaceChildren(this.panel, this.none, el("div", { class: "row more" }, this.more));
    this.count();
  }

  showEmpty() {
    if (this.filters.isNarrow) {
      empty(this.box, "No matching jobs", "Change or clear the filters.", button("Clear filters", () => this.filters.clear()));
    } else {
      empty(this.box, "No jobs yet", firstSteps(), newJob(),
        el("p", { class: "small" }, el("a", { href: "#/jobs?archived=true" }, "Show archived jobs")));
    }
  }

  table() {
    this.heads = COLUMNS.map(([name, sort]) => el("th", { scope: "col", role: "columnheader" },
      sort ? button(name, () => this.sortBy(sort), { kind: "sort" }) : name));
    this.sorting();
    return el("div", { class: "panel flush scroll" }, el("table", { class: "list jobs", role: "table" },
      el("caption", { class: "unseen" }, "Jobs"),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" },
        el("th", { scope: "col", role: "columnheader" }, el("span", { class: "unseen" }, "Select")),
        this.heads,
        el("th", { scope: "col", role: "columnheader" }, el("span", { class: "unseen" }, "Edit")))),
      this.body));
  }

  // The second click on a column reverses it.
  sortBy(first) {
    const other = first.startsWith("-") ? first.slice(1) : `-${first}`;
    this.filters.set({ sort: this.filters.sort === first ? other : first });
  }

  sorting() {
    const current = this.filters.sort;
    COLUMNS.forEach(([, sort], at) => {
      const isHere = sort?.replace("-", "") === current.replace("-", "");
      if (isHere) this.heads[at].setAttribute("aria-sort", current.startsWith("-") ? "descending" : "ascending");
      else this.heads[at].removeAttribute("aria-sort");
    });
  }

  // ---- live

  async stayFresh() {
    for (;;) {
      await pause(REFRESH_SECONDS, this.signal);
      if (!document.hidden) await this.refresh();
    }
  }

  // As many jobs as are shown, read again.
  async refresh() {
    const number = this.number;
    const wanted = Math.max(PAGE, this.order.length);
    try {
      const pages = paged(JOBS, { limit: Math.min(MOST, wanted), ...this.filters.query() }, { signal: this.signal });
      const read = await pages.next();
      while (pages.hasMore && read.length < wanted) read.push(...await pages.next());
      if (number !== this.number) return;
      const jobs = read.slice(0, wanted);
      this.order = [];
      this.take(jobs);
      Object.assign(this.pages, { after: jobs.at(-1)?.id, hasMore: pages.hasMore || read.length > wanted });
      this.none.replaceChildren();
      this.arrange();
    } catch (error) {
      if (this.signal.aborted) throw error;
      if (error.status === undefined) throw error;
      if (error.status !== 0) failed(this.none, error);
    }
  }

  // ---- several jobs

  count() {
    const jobs = this.selected();
    const number = jobs.length;
    this.actions.hidden = !number;
    this.compare.disabled = number < 2 || number > MOST_COMPARED;
    this.compare.textContent = number > 1 ? `Compare ${number} jobs` : "Compare";
    this.archive.textContent = this.filters.values.archived ? "Restore" : "Archive";
    this.remove.disabled = !jobs.every(isOver);
  }

  selected() {
    return this.order.map((id) => this.rows.get(id)).filter((row) => row.isChosen()).map((row) => row.job);
  }

  goCompare() {
    location.hash = `#/compare?jobs=${this.selected().map((job) => job.id).join(",")}`;
  }

  async archiveChosen() {
    const archived = !this.filters.values.archived;
    const jobs = this.selected();
    try {
      for (const job of jobs) await patch(jobPath(job.id), { archived });
      announce(`${counted(jobs.length, "job")} ${archived ? "archived" : "restored"}`);
    } catch (error) {
      showMessage("Not archived", error.message);
    }
    await this.refresh();
  }

  async deleteChosen() {
    await deleteJobs(this.selected());
    await this.refresh();
  }
}
