// One prompt's group: its rewards as bars over the mean, and the selected completion.
// Boundary: a group of the API in, elements out.

import { announce, el, number, percent, quoted } from "../../dom.js";
import { Bars, signed } from "./bars.js";

const ENDS = { stop: "Stop token", length: "Max tokens" };

export class GroupView {
  constructor() {
    this.bars = new Bars((index) => this.choose(index));
    this.facts = el("dl", { class: "figures" });
    this.prompt = el("div");
    this.note = el("div");
    this.completion = el("div", { class: "panel completion" });
    this.table = el("details", { class: "panel" });
    this.root = el("div", { class: "group" },
      el("div", { class: "panel" }, this.facts, this.prompt),
      el("div", { class: "panel" }, this.bars.root, this.note), this.completion, this.table);
    this.rescored = new Map();
  }

  // `admits`: whether a completion is selected; the others are dimmed.
  show(group, admits) {
    this.group = group;
    this.admits = admits;
    const first = group.completions.findIndex(admits);
    this.chosen = Math.max(0, first);
    this.draw();
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
    this.prompt.replaceChildren(el("h2", { class: "small faint" }, "Prompt"), el("p", { class: "text prompt" }, group.prompt));
    this.bars.draw(group, { chosen: this.chosen, admits: this.admits, after });
    this.note.replaceChildren(...notes(group));
    this.table.replaceChildren(el("summary", {}, "As a table"), el("div", { class: "scroll" }, table(group, after)));
    this.showCompletion();
  }

  choose(index) {
    this.chosen = index;
    this.showCompletion();
    announce(`Completion ${index + 1} is shown below`);
  }

  showCompletion() {
    const one = this.group.completions[this.chosen];
    if (!one) return this.completion.replaceChildren();
    const after = this.rescored.get(this.group.id)?.completions[this.chosen];
    this.completion.replaceChildren(
      el("h2", {}, `Completion ${this.chosen + 1}`),
      el("dl", { class: "figures" }, completionFigures(one, after).map(([name, value]) =>
        el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
      el("p", { class: "text model-text", tabindex: 0, role: "region", "aria-label": `Text of completion ${this.chosen + 1}` },
        one.text || el("span", { class: "faint" }, "empty completion")),
      parts(one, after), one.feedback ? el("p", { class: "hint text" }, one.feedback) : "");
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

function completionFigures(one, after) {
  const changed = (before, now, write) => (after ? `${write(before)} → ${write(now)}` : write(before));
  const found = [
    ["Reward", changed(one.reward, after?.reward_after, number)],
    ["Advantage", changed(one.advantage, after?.advantage_after, signed)],
    ["Tokens", number(one.num_tokens)],
    ["Finish", ENDS[one.finish_reason] ?? one.finish_reason],
    ["Policy version", number(one.policy_version)],
  ];
  return one.turns > 1 ? [...found, ["Turns", number(one.turns)]] : found;
}

// The score of each part of the grader, or its error.
function parts(one, after) {
  const names = [...new Set([...Object.keys(one.parts), ...Object.keys(one.errors)])];
  const rows = names.map((name) => [name, one.parts[name], one.errors[name]]);
  for (const [name, score] of Object.entries(after?.parts ?? {})) {
    rows.push([`${name} (re-scored)`, score, after.errors[name]]);
  }
  if (!rows.length) return "";
  return el("table", { class: "list parts" },
    el("caption", { class: "unseen" }, "Parts of the reward"),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Grader part"), el("th", { scope: "col" }, "Score"))),
    el("tbody", {}, rows.map(([name, score, error]) => el("tr", {}, el("th", { scope: "row" }, name),
      el("td", {}, error ? el("span", { class: "problem" }, el("code", {}, error.code), " ", quoted(error.message)) : number(score))))));
}

function table(group, after) {
  const names = [...new Set(group.completions.flatMap((one) => Object.keys(one.parts)))];
  const head = ["Completion", "Reward", "Advantage", "Tokens", "Finish", ...names, ...(after ? ["Rescored"] : [])];
  return el("table", { class: "list numbers" },
    el("caption", { class: "unseen" }, `Rewards of the group; their mean is ${number(group.mean_reward)}`),
    el("thead", {}, el("tr", {}, head.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, group.completions.map((one, at) => el("tr", {},
      el("th", { scope: "row" }, String(at + 1)), el("td", {}, one.reward === null ? "error" : number(one.reward)),
      el("td", {}, signed(one.advantage)), el("td", {}, number(one.num_tokens)), el("td", {}, one.finish_reason),
      names.map((name) => el("td", {}, one.errors[name] ? "error" : number(one.parts[name]))),
      after && el("td", {}, number(after.completions[at].reward_after))))));
}
