// The output of a job's engine: the newest lines, live, with a filter and the whole log as a download.
// The page keeps the last `KEPT` lines; only new ones are fetched and drawn.

import { download, get, jobPath, pause } from "../../api.js";
import { button, counted, el, failed, moment } from "../../dom.js";
import { isOver } from "../../job_parts.js";

const KEPT = 3000;
const PAGE = 3000;
const POLL_SECONDS = 2;
const NEAR_PX = 24;

export class Logs {
  constructor(id, signal) {
    this.id = id;
    this.signal = signal;
    this.lines = [];
    this.filter = el("input", { type: "search", id: "log-filter", placeholder: "Filter", oninput: () => this.draw() });
    this.note = el("span", { class: "faint" });
    this.trouble = el("div");
    this.box = el("div", { class: "log", role: "log", "aria-live": "off", "aria-label": "Engine's log", tabindex: 0 });
    this.root = el("div", { class: "logs" },
      el("div", { class: "row" }, el("label", { for: "log-filter", class: "unseen" }, "Filter lines"), this.filter, this.note,
        button("Download", () => this.save())),
      this.trouble, this.box);
  }

  // Shows the newest lines and, while the job runs and the tab is shown, the new ones. May be called again.
  async load(job) {
    this.job = job;
    this.running ??= this.follow().catch(() => {}).finally(() => (this.running = null)); // left: the signal fired
    await this.first;
  }

  async follow() {
    let wasOver = isOver(this.job); // before reading: the log of a job that is over is complete
    this.first = this.read();
    await this.first;
    while (!wasOver) {
      await pause(POLL_SECONDS, this.signal);
      if (!this.root.isConnected) return; // another tab is shown
      wasOver = isOver(this.job);
      if (wasOver || !document.hidden) await this.read();
    }
  }

  async read() {
    try {
      for (let hasMore = true; hasMore;) {
        const last = this.lines.at(-1)?.sequence;
        const query = last === undefined ? { tail: KEPT, limit: PAGE } : { after: last, limit: PAGE };
        const page = await get(jobPath(this.id, "/logs"), { query, signal: this.signal });
        hasMore = page.has_more;
        if (page.data.length) this.add(page.data);
      }
      this.trouble.replaceChildren();
      if (!this.lines.length) this.note.textContent = isOver(this.job) ? "No output" : "No output yet";
    } catch (error) {
      if (!this.signal?.aborted) failed(this.trouble, error, () => this.load(this.job));
    }
  }

  add(fresh) {
    const before = this.lines.at(-1);
    const isAtEnd = this.isAtEnd;
    this.lines.push(...fresh);
    const excess = Math.max(0, this.lines.length - KEPT);
    for (const old of this.lines.splice(0, excess)) {
      old.parts?.forEach((part) => part.remove());
      old.parts = null;
    }
    this.box.append(...this.drawn(fresh.filter((line) => this.lines[0].sequence <= line.sequence), before));
    this.describe();
    if (isAtEnd) this.box.scrollTop = this.box.scrollHeight;
  }

  draw() {
    this.box.replaceChildren(...this.drawn(this.lines));
    this.describe();
    this.box.scrollTop = this.box.scrollHeight;
  }

  get isAtEnd() {
    return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < NEAR_PX;
  }

  // The elements of these lines that contain the filter's text, with a separator before each new attempt.
  drawn(lines, before) {
    const wanted = this.filter.value.toLowerCase();
    let attempt = before?.attempt ?? 1;
    return lines.flatMap((line) => {
      line.parts = [];
      if (line.attempt !== attempt) line.parts.push(el("p", { class: "attempt" }, `Attempt ${line.attempt}`));
      attempt = line.attempt;
      if (line.text.toLowerCase().includes(wanted)) {
        const rank = line.rank ? `[rank ${line.rank}] ` : "";
        line.parts.push(el("p", { title: moment(line.created_at) }, rank + line.text));
      }
      return line.parts;
    });
  }

  describe() {
    const first = this.lines[0]?.sequence ?? 1;
    this.note.textContent = first > 1 ? `Newest ${counted(this.lines.length, "line")}; the download has more` : "";
  }

  async save() {
    try {
      await download(jobPath(this.id, "/logs"), { query: { format: "text" }, filename: `${this.id}.log`, signal: this.signal });
    } catch (error) {
      if (!this.signal?.aborted) failed(this.trouble, error);
    }
  }
}
