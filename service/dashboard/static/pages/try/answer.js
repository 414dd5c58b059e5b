// One model's side of the conversation: its turns, and the response that streams in.
// Boundary: its panel; the page builds the request.

import { duration, el, empty, failed } from "../../dom.js";
import { streamChat } from "../../chat_stream.js";

const WHY = { stop: "stopped by the model", length: "cut off at max tokens" };

export class Answer {
  constructor() {
    this.title = el("h2", { class: "cut" });
    this.body = el("div", { class: "model-text" });
    this.foot = el("p", { class: "hint" });
    this.root = el("section", { class: "panel answer", hidden: true }, this.title, this.body, this.foot);
    this.clear();
  }

  // Forgets the conversation.
  clear() {
    this.turns = [];
    this.body.replaceChildren();
    this.foot.textContent = "";
    this.root.hidden = true;
    this.root.setAttribute("aria-label", "No answer yet");
  }

  // Shows the response, or why there is none. → whether it is complete; only then it is part of the next request.
  // Never throws, so that the other panel continues.
  async stream(wanted, signal) {
    const began = performance.now();
    const turn = this.begin(wanted);
    let isComplete = false;
    try {
      const turns = wanted.isPlain ? [] : this.turns;
      const { reason, usage } = await streamChat({ ...wanted, turns }, { signal, onText: (piece) => this.grow(piece) });
      this.end(turn, reason, usage, (performance.now() - began) / 1000);
      this.turns.push({ prompt: wanted.prompt, text: this.text.data });
      this.answered = wanted.model;
      isComplete = true;
    } catch (error) {
      this.broke(turn, error, () => {
        turn.remove();
        this.stream(wanted, signal);
      });
    }
    clearInterval(this.waiting);
    this.root.setAttribute("aria-busy", "false");
    return isComplete;
  }

  begin({ model, title, prompt }) {
    this.title.textContent = title;
    this.title.title = model;
    this.root.hidden = false;
    this.root.setAttribute("aria-label", `Answer of ${title}`);
    this.root.setAttribute("aria-busy", "true");
    this.text = document.createTextNode("");
    const turn = el("div", { class: "turn" },
      el("p", { class: "text asked" }, el("span", { class: "unseen" }, "You: "), prompt),
      el("p", { class: "text" }, this.text));
    this.body.append(turn);
    this.wait(this.answered === model ? "Waiting for the first word" : "The model is loading");
    return turn;
  }

  // Shows the seconds until the first word; a model that has answered is loaded.
  wait(reason) {
    const began = performance.now();
    const show = () => { this.foot.textContent = `${reason}… ${duration(Math.round((performance.now() - began) / 1000))}`; };
    clearInterval(this.waiting);
    this.waiting = setInterval(show, 1000);
    show();
  }

  grow(piece) {
    clearInterval(this.waiting);
    this.text.appendData(piece);
    this.foot.textContent = "Answering…";
  }

  end(turn, reason, usage, seconds) {
    if (!this.text.data) {
      const box = el("div");
      empty(box, "Empty response", "The model ended its response immediately.");
      turn.append(box);
    }
    const tokens = usage ? `${usage.completion_tokens} tokens in ${duration(seconds)}, ` : "";
    this.foot.textContent = `${tokens}${WHY[reason] ?? reason}`;
  }

  broke(turn, error, retry) {
    this.foot.textContent = "";
    if (error.name === "AbortError") {
      this.foot.textContent = "Stopped";
      return;
    }
    if (error.status === undefined) console.error(error);
    const box = el("div");
    failed(box, error, error.status >= 500 || !error.status ? retry : undefined);
    turn.append(box);
  }
}
