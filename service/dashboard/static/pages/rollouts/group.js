// One prompt's group: the prompt, the rewards as bars over the mean, and all completions side by side.
// Boundary: a group of the API in, elements out.

import { announce, el, number, percent } from "../../dom.js";
import { Bars, signed } from "./bars.js";
import { card } from "./card.js";
import { endOf } from "./ends.js";
import { isLong } from "./long_text.js";
import { Prompt } from "./prompt.js";

export class GroupView {
  constructor() {
    this.bars = new Bars((index) => this.choose(index));
    this.facts = el("dl", { class: "figures" });
    this.prompt = new Prompt();
    this.note = el("div");
    this.cards = el("div", { class: "cards", tabindex: 0, role: "region", "aria-label": "Completions side by side" });
    this.table = el("details", { class: "panel" });
    this.root = el("div", { class: "group" }, this.prompt.root,
      el("div", { class: "panel" }, this.facts, this.bars.root, this.note), this.cards, this.table);
    this.rescored = new Map();
  }

  // `admits`: whether a completion is selected; the others are dimmed.
  show(group, admits) {
    this.group = group;
    this.admits = admits;
    this.chosen = Math.max(0, group.completions.findIndex(admits));
    this.prompt.show(group);
    this.draw();
    this.cards.scrollLeft = 0;
  }

  // Shows the result of a re-score as marks across the bars.
  compareWith(answer) {
    this.rescored = new Map((answer?.data ?? []).map((group) => [group.id, group]));
    if (this.group) this.draw();
  }

  draw() {
    const { group } = this;
    const after = this.rescored.get(group.id);
    this.facts.replaceChildren(...figures(group, after).map(([name, value, small]) => el("div", {}, el("dt", {}, name),
      el("dd", {}, value, small && el("small", {}, small)))));
    this.bars.draw(group, { chosen: this.chosen, admits: this.admits, after });
    this.note.replaceChildren(...notes(group));
    this.cards.replaceChildren(...group.completions.map((one, at) =>
      card(one, at, { after: after?.completions[at], isDim: !this.admits(one) })));
    this.mark();
    this.table.replaceChildren(el("summary", {}, "As a table"),
      el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Completions as a table" }, table(group, after)));
  }

  choose(index) {
    this.chosen = index;
    this.mark();
    this.cards.children[index]?.scrollIntoView({ block: "nearest", inline: "center" });
    announce(`Completion ${index + 1} is marked below`);
  }

  mark() {
    [...this.cards.children].forEach((one, at) => one.classList.toggle("chosen", at === this.chosen));
  }
}

function figures(group, after) {
  const scored = group.completions.filter((one) => one.reward !== null);
  const found = [
    ["Step", number(group.step)],
    ["Dataset row", number(group.row + 1)],
    ["Mean reward", number(group.mean_reward), after && `rescored: ${number(after.mean_after)}`],
    ["Passed", percent(scored.length ? scored.filter((one) => one.reward >= 1).length / scored.length : null),
      "reward of 1 or more"],
  ];
  return group.set ? [["Set", group.set], ...found] : found;
}

function notes(group) {
  const isAlone = group.completions.length < 2;
  if (isAlone) return [el("p", { class: "hint" }, "An evaluation samples one completion per prompt, so there is no comparison.")];
  if (group.has_signal) return [];
  return [el("p", { class: "note warn" },
    "No signal: all scored completions have the same reward, so this group teaches nothing.")];
}

function table(group, after) {
  const names = [...new Set(group.completions.flatMap((one) => Object.keys(one.parts)))];
  const head = ["Completion", "Reward", "Advantage", "Tokens", "Finish", ...names, ...(after ? ["Rescored"] : []), "Text"];
  return el("table", { class: "list numbers texts" },
    el("caption", { class: "unseen" }, `Rewards of the group; their mean is ${number(group.mean_reward)}`),
    el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, group.completions.map((one, at) => el("tr", {},
      el("th", { scope: "row" }, String(at + 1)), el("td", {}, one.reward === null ? "error" : number(one.reward)),
      el("td", {}, signed(one.advantage)), el("td", {}, number(one.num_tokens)),
      el("td", {}, endOf(one)),
      names.map((name) => el("td", {}, one.errors[name] ? "error" : number(one.parts[name]))),
      after && el("td", {}, number(after.completions[at].reward_after)),
      el("td", {}, el("div", { class: "text", tabindex: isLong(one.text) ? 0 : null }, one.text))))));
}
