// Downloads of the selection: the groups themselves, or datasets made from them.

import { download, jobPath } from "../../api.js";
import { button, el, failed } from "../../dom.js";

const KINDS = [
  { label: "JSONL", hint: "all shown groups", rest: "/rollouts.jsonl", without: ["best", "worst"] },
  { label: "SFT", hint: "the best completions", rest: "/rollouts/sft.jsonl" },
  { label: "DPO", hint: "preference pairs", rest: "/rollouts/dpo.jsonl" },
];

export class Exports {
  // `query`: → the current selection as the API's parameters.
  constructor(id, query, signal) {
    this.id = id;
    this.query = query;
    this.signal = signal;
    this.problem = el("div", { hidden: true });
    this.root = el("div", { class: "row" }, el("span", { class: "small faint" }, "Export shown groups"),
      KINDS.map((kind) => button(kind.label, (event) => this.save(kind, event.target), { kind: "small", title: kind.hint })));
  }

  async save(kind, pressed) {
    const { filter, ...query } = this.query();
    if (kind.without && filter && !kind.without.includes(filter)) query.filter = filter;
    pressed.disabled = true;
    this.problem.hidden = true;
    try {
      await download(jobPath(this.id, kind.rest), { query, signal: this.signal });
    } catch (error) {
      if (this.signal.aborted) return;
      if (error.status === undefined) throw error;
      this.problem.hidden = false;
      failed(this.problem, error);
    } finally {
      pressed.disabled = false;
    }
  }
}
