// One model's answer as it grows. Boundary: its panel; what is asked and of whom is the page's.

import { duration, el, empty, failed } from "../dom.js";
import { talk } from "../talk.js";

const WHY = { stop: "the model ended it", length: "cut at the limit of tokens" };

export class Answer {
  constructor() {
    this.title = el("h2", { class: "cut" });
    this.body = el("div", { class: "said" });
    this.foot = el("p", { class: "hint" });
    this.root = el("section", { class: "panel answer", hidden: true }, this.title, this.body, this.foot);
    this.clear();
  }

  clear() {
    this.root.hidden = true;
    this.root.setAttribute("aria-label", "No answer yet");
  }

  // Shows the answer, or why there is none. Never throws: the other one goes on.
  async ask(asked, signal) {
    const began = performance.now();
    this.begin(asked.model);
    try {
      const { reason, usage } = await talk(asked, { signal, onText: (piece) => this.grow(piece) });
      this.end(reason, usage, (performance.now() - began) / 1000);
    } catch (error) {
      this.broke(error, () => this.ask(asked, signal));
    }
    this.root.setAttribute("aria-busy", "false");
  }

  begin(model) {
    this.title.textContent = model;
    this.title.title = model;
    this.root.hidden = false;
    this.root.setAttribute("aria-label", `Answer of ${model}`);
    this.root.setAttribute("aria-busy", "true");
    this.text = document.createTextNode("");
    this.body.replaceChildren(el("p", { class: "text" }, this.text));
    this.foot.textContent = "Waiting for the first word…";
  }

  grow(piece) {
    this.text.appendData(piece);
    this.foot.textContent = "Answering…";
  }

  end(reason, usage, seconds) {
    if (!this.text.data) empty(this.body, "It said nothing", "The model ended its answer at once.");
    const tokens = usage ? `${usage.completion_tokens} tokens in ${duration(seconds)}, ` : "";
    this.foot.textContent = `${tokens}${WHY[reason] ?? reason}`;
  }

  broke(error, retry) {
    this.foot.textContent = "";
    if (error.name === "AbortError") {
      this.foot.textContent = "Stopped";
      return;
    }
    if (error.status === undefined) console.error(error);
    const box = el("div");
    failed(box, error, error.status >= 500 || !error.status ? retry : undefined);
    this.body.append(box);
  }
}
