// One model's streamed response. Boundary: its panel; the page builds the request.

import { duration, el, empty, failed } from "../../dom.js";
import { talk } from "../../talk.js";

const WHY = { stop: "stopped by the model", length: "cut off at max tokens" };

export class Answer {
  constructor() {
    this.title = el("h2", { class: "cut" });
    this.body = el("div", { class: "model-text" });
    this.foot = el("p", { class: "hint" });
    this.root = el("section", { class: "panel answer", hidden: true }, this.title, this.body, this.foot);
    this.clear();
  }

  clear() {
    this.root.hidden = true;
    this.root.setAttribute("aria-label", "No answer yet");
  }

  // Shows the response, or why there is none. Never throws, so that the other panel continues.
  async stream(wanted, signal) {
    const began = performance.now();
    this.reset(wanted.model);
    try {
      const { reason, usage } = await talk(wanted, { signal, onText: (piece) => this.grow(piece) });
      this.end(reason, usage, (performance.now() - began) / 1000);
    } catch (error) {
      this.broke(error, () => this.stream(wanted, signal));
    }
    this.root.setAttribute("aria-busy", "false");
  }

  reset(model) {
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
    if (!this.text.data) empty(this.body, "Empty response", "The model ended its response immediately.");
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
