// A job's events, newest first. Each step is an event too; those are shown on request only.

import { get, jobPath } from "../../api.js";
import { el, empty, failed, loading, moment, moreButton, section } from "../../dom.js";

const PAGE = 50;
const PAGES_AT_ONCE = 4;

export class History {
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.all = [];
    this.hasMore = true;
    this.withSteps = el("input", { type: "checkbox", id: "steps", onchange: () => this.show() });
    this.list = el("ol", { class: "events" });
    this.more = moreButton("Load older events", () => this.older(), { hidden: true });
    this.box = el("div");
    this.root = section("History",
      el("div", { class: "row" }, this.withSteps, el("label", { for: "steps" }, "Show every step")), this.box, this.more);
  }

  // The number of the newest event, after which the stream continues.
  async newest() {
    const newest = this.all[0] ?? (await this.page({ limit: 1 })).data[0];
    return newest ? Number(newest.id.split("-").at(-1)) : 0;
  }

  // All of it at first, then what is new.
  load() {
    return this.isLoaded ? this.refresh() : this.reload();
  }

  async reload() {
    if (!this.isLoaded) loading(this.box, "Loading events");
    const page = await this.page().catch((error) => {
      if (!this.isLoaded) this.box.replaceChildren(); // the tab shows the error
      throw error;
    });
    this.isLoaded = true;
    this.all = page.data;
    this.hasMore = page.has_more;
    this.show();
    if (!this.shown().length && this.hasMore) await this.older();
  }

  // Hidden steps can fill whole pages: reads a few more until something is shown. → the first new line, if any.
  async older() {
    this.more.disabled = true;
    const before = this.shown().length;
    try {
      for (let pages = 0; this.hasMore && pages < PAGES_AT_ONCE && this.shown().length === before; pages += 1) {
        const page = await this.page({ after: this.all.at(-1)?.id });
        this.all.push(...page.data);
        this.hasMore = page.has_more;
      }
      this.show();
    } catch (error) {
      if (!this.signal.aborted) failed(this.box, error, () => this.reload());
    }
    this.more.disabled = false;
    const first = this.list.children[before];
    first?.setAttribute("tabindex", -1);
    return first;
  }

  async refresh() {
    const newestId = this.all[0]?.id;
    let after;
    const fresh = [];
    for (let pages = 0; pages < PAGES_AT_ONCE; pages += 1) {
      const page = await this.page({ after });
      const at = page.data.findIndex((event) => event.id === newestId);
      fresh.push(...(at < 0 ? page.data : page.data.slice(0, at)));
      if (at >= 0 || !page.has_more) {
        return this.prepend(fresh);
      }
      after = page.last_id;
    }
    await this.reload(); // too many new events: reload the list
  }

  // Keeps the other rows, as the user may be reading them.
  prepend(fresh) {
    const wasEmpty = !this.shown().length;
    this.all.unshift(...fresh);
    if (wasEmpty) this.show();
    else this.list.prepend(...fresh.filter((event) => this.isShown(event)).map(eventLine));
  }

  page(query = {}) {
    return get(jobPath(this.id, "/events"), { query: { limit: PAGE, ...query }, signal: this.signal });
  }

  shown() {
    return this.all.filter((event) => this.isShown(event));
  }

  isShown(event) {
    return this.withSteps.checked || event.type !== "metrics";
  }

  show() {
    const shown = this.shown();
    this.more.hidden = !this.hasMore;
    if (!shown.length) return empty(this.box, "No events yet");
    this.list.replaceChildren(...shown.map(eventLine));
    this.box.replaceChildren(el("div", { class: "panel flush" }, this.list));
  }
}

function eventLine(event) {
  const time = el("time", { datetime: new Date(event.created_at * 1000).toISOString(), class: "faint numeric" },
    moment(event.created_at));
  const isPlain = event.level === "info";
  return el("li", { class: isPlain ? "" : event.level }, time, el("span", { class: "text" },
    !isPlain && el("strong", {}, `${event.level}: `), event.message));
}
