// A job's rollouts, one prompt's group at a time: `#/jobs/<id>/rollouts?step=3&filter=no_signal&group=…`.
// Boundary: requests the groups that the address selects; `group.js` renders one.

import { replaceQuery, styled } from "../../address.js";
import { can } from "../../access.js";
import { follow, get, jobPath, paged } from "../../api.js";
import { announce, button, el, empty, failed, heading, loading } from "../../dom.js";
import { isOver, jobName, jobPages, statusBadge } from "../../job_parts.js";
import { Controls, NAMES } from "./controls.js";
import { Exports } from "./exports.js";
import { GroupView } from "./group.js";
import { Rescore } from "./rescore.js";

const PAGE = 20;

export async function show(root, params, signal) {
  loading(root, "Loading the rollouts");
  const job = await get(jobPath(params.id), { signal });
  const [overview] = await Promise.all([overviewOf(job.id, signal), styled("rollouts")]);
  const page = new RolloutsPage(job, overview, params.query, signal);
  root.replaceChildren(...page.parts());
  document.addEventListener("keydown", (event) => page.key(event), { signal });
  await page.load(params.query.get("group"));
  if (!isOver(job)) await page.stayFresh();
}

const overviewOf = (id, signal) => get(jobPath(id, "/rollouts/overview"), { signal });

class RolloutsPage {
  constructor(job, overview, query, signal) {
    this.job = job;
    this.signal = signal;
    this.groups = [];
    this.at = 0;
    this.controls = new Controls(overview, query, () => this.changed());
    this.previous = button("‹", () => this.go(-1), { "aria-label": "Previous group" });
    this.next = button("›", () => this.go(1), { "aria-label": "Next group" });
    this.number = el("input", { type: "number", id: "group-number", class: "jump", min: 1,
      onchange: () => this.go(Math.max(1, Math.trunc(this.number.value)) - 1 - this.at) });
    this.place = el("span", { class: "place", role: "status" });
    this.pager = el("div", { class: "row pager" }, this.previous,
      el("label", { for: "group-number" }, "Group"), this.number, this.place, this.next,
      el("span", { class: "small faint keys" }, el("kbd", {}, "←"), " ", el("kbd", {}, "→"), " group, with ",
        el("kbd", {}, "Shift"), " step"));
    this.box = el("div", { class: "group" });
    this.status = el("span", {}, statusBadge(job));
    this.view = new GroupView();
    this.rescore = new Rescore(job, () => this.controls.query(), signal, (answer) => this.view.compareWith(answer));
  }

  parts() {
    const name = jobName(this.job);
    const exports = new Exports(this.job.id, () => this.controls.query(), this.signal);
    return [
      heading("Rollouts", {
        above: can.browse && el("a", { class: "small back", href: "#/jobs" }, "Jobs"),
        below: el("div", { class: "row about" }, this.status, el("span", {}, name)),
        actions: [can.browse && exports.root],
      }),
      jobPages(this.job, "rollouts"), exports.problem, this.controls.root, this.pager, this.box,
      ...(can.browse ? [this.rescore.root] : []),
    ];
  }

  async changed() {
    if (this.signal.aborted) return; // a short delay while the slider moves
    replaceQuery({ ...this.controls.state, group: null });
    await this.load();
  }

  // The first groups of the selection; `wanted`: the id of the one to show, if it is among them.
  async load(wanted) {
    const mine = (this.loading = {});
    if (!this.controls.hasSteps) return this.nothingYet();
    if (!this.groups.length) this.replaceGroup(() => loading(this.box, "Loading groups"));
    this.box.setAttribute("aria-busy", true); // the old content stays meanwhile, so that the slider does not make it flicker
    this.pages = paged(jobPath(this.job.id, "/rollouts"), { limit: PAGE, ...this.controls.query() }, { signal: this.signal });
    try {
      const first = await this.pages.next();
      if (this.loading !== mine) return;
      this.groups = first;
      this.at = Math.max(0, first.findIndex((group) => group.id === wanted));
      this.show();
    } catch (error) {
      if (this.signal.aborted || this.loading !== mine) return;
      if (error.status === undefined) throw error;
      this.groups = [];
      this.replaceGroup(() => failed(this.box, error, () => this.load(wanted)));
    }
  }

  // Shows a state instead of a group.
  replaceGroup(show) {
    this.pager.hidden = this.rescore.root.hidden = true;
    this.box.removeAttribute("aria-busy");
    show();
  }

  show() {
    const group = this.groups[this.at];
    if (!group) return this.nothingFits();
    this.box.removeAttribute("aria-busy");
    const count = this.controls.numGroups ?? `${this.groups.length}${this.pages.hasMore ? "+" : ""}`;
    this.number.value = this.at + 1;
    this.number.disabled = this.controls.state.step === "all"; // the place would be thousands of groups away
    this.place.textContent = `of ${count}`;
    this.previous.disabled = this.at === 0;
    this.next.disabled = this.at + 1 >= this.groups.length && !this.pages.hasMore;
    this.pager.hidden = this.rescore.root.hidden = false;
    this.box.replaceChildren(this.view.root);
    this.view.show(group, (completion) => this.controls.admits(completion));
    replaceQuery({ group: group.id });
  }

  async go(by) {
    while (this.at + by >= this.groups.length && this.pages.hasMore) {
      if (!(await this.grow())) return;
    }
    this.at = Math.max(0, Math.min(this.at + by, this.groups.length - 1));
    this.show();
  }

  // Arrow keys turn over groups, with Shift steps, unless the focused element uses them itself.
  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const isTaken = event.target.closest("input, select, textarea, dialog, .bars, [tabindex='0']");
    if (!by || isTaken || event.altKey || event.ctrlKey || event.metaKey || this.pager.hidden) return;
    event.preventDefault();
    if (event.shiftKey) this.controls.move(by);
    else this.go(by);
  }

  // Loads the next page of groups; false if that failed or is no longer needed.
  async grow() {
    const pages = this.pages;
    this.next.disabled = true; // a second request would load it twice
    try {
      const more = await pages.next();
      if (pages !== this.pages) return false;
      this.groups.push(...more);
      return true;
    } catch (error) {
      if (this.signal.aborted) return false;
      if (error.status === undefined) throw error;
      failed(this.box, error, () => this.show());
      return false;
    }
  }

  nothingYet() {
    const texts = this.job.method.type === "supervised"
      ? ["No rollouts", "Supervised jobs do not sample completions."]
      : ["No rollouts yet", "They appear with the first step."];
    this.replaceGroup(() => empty(this.box, ...texts));
  }

  nothingFits() {
    const filter = this.controls.state.filter;
    const what = filter ? `“${NAMES[filter].toLowerCase()}”` : "the selection";
    this.replaceGroup(() => empty(this.box, "No matching group", `No group matches ${what}.`,
      button("Show all groups", () => this.controls.clear())));
    announce("No matching group");
  }

  // ---- live: the stream announces a new step, the overview lists the steps

  async stayFresh() {
    const newest = await get(jobPath(this.job.id, "/events"), { query: { limit: 1 }, signal: this.signal });
    const after = newest.data.length ? Number(newest.data[0].id.split("-").at(-1)) : 0;
    const onEvent = (event) => event.type === "metrics" && this.refresh();
    await follow(this.job.id, { after, signal: this.signal, onEvent });
    this.status.replaceChildren(statusBadge(await get(jobPath(this.job.id), { signal: this.signal })));
  }

  // One request at a time, and one more if a step arrived meanwhile.
  async refresh() {
    this.isStale = true;
    if (this.isLoading) return;
    this.isLoading = true;
    try {
      while (this.isStale) {
        this.isStale = false;
        await this.offer(await overviewOf(this.job.id, this.signal));
      }
    } catch (error) {
      if (!this.signal.aborted && error.status === undefined) throw error;
    } finally {
      this.isLoading = false; // after a failure, the next step tries again
    }
  }

  async offer(overview) {
    const wasEmpty = !this.controls.hasSteps;
    this.controls.offer(overview);
    if (wasEmpty && this.controls.hasSteps) await this.load();
  }
}
