// Earlier probes with their results, newest first; each can be opened again.

import { paged, PROBES } from "../../api.js";
import { ago, button, counted, el, empty, failed, loading, moreButton } from "../../dom.js";
import { modelName } from "../../job_names.js";
import { isOver } from "../../job_parts.js";

const PAGE = 5;

export class PastProbes {
  // `again(id)` shows a probe in the place of a new one.
  constructor(again, signal) {
    this.again = again;
    this.signal = signal;
    this.list = el("ul", { class: "past" });
    this.unfinished = new Set(); // ids of the listed ones that had not finished
    this.box = el("div");
    this.more = moreButton("Load older probes", () => this.grow(), { kind: "small" });
    this.root = el("details", { class: "panel", ontoggle: () => this.refresh() },
      el("summary", {}, "Previous probes"), this.box);
  }

  // Reads the list again up to the loaded page.
  async refresh() {
    if (!this.root.open) return;
    if (!this.list.hasChildNodes()) loading(this.box, "Loading probes");
    this.pages = paged(PROBES, { limit: PAGE }, { signal: this.signal });
    await this.grow(() => { this.list.replaceChildren(); this.unfinished.clear(); });
  }

  // `first()` precedes the rows. → the button of the first new probe, if any.
  async grow(first) {
    this.more.disabled = true;
    let before;
    try {
      const probes = await this.pages.next();
      first?.();
      before = this.list.children.length;
      this.list.append(...probes.map((probe) => this.row(probe)));
      this.show();
    } catch (error) {
      if (!this.signal.aborted) failed(this.box, error, () => this.refresh());
    }
    this.more.disabled = false;
    return this.list.children[before]?.querySelector("button");
  }

  show() {
    if (!this.list.hasChildNodes()) return empty(this.box, "No probe yet", "A probe samples the model before training.");
    this.box.replaceChildren(this.list, ...(this.pages.hasMore ? [this.more] : []));
  }

  // Whether the list shows a probe as unfinished.
  showsUnfinished(id) { return this.unfinished.has(id); }

  row(probe) {
    if (!isOver(probe)) this.unfinished.add(probe.id);
    const name = `${modelName(probe.model)}, ${counted(probe.prompts, "prompt")}`;
    return el("li", {},
      el("div", { class: "row" }, button(name, () => this.again(probe.id), { kind: "small" }),
        el("span", { class: "small faint" }, ago(probe.created_at))),
      el("p", { class: "small" }, probe.result?.sentence ?? probe.failure?.message ?? state(probe)));
  }
}

const state = (probe) => (probe.status === "cancelled" ? "Cancelled." : `It is ${probe.queue.reason ?? probe.phase}.`);
