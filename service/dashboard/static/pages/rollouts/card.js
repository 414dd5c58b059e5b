// One completion of a group as a card: reward, advantage, text, parts, and why.

import { counted, el, number, quoted } from "../../dom.js";
import { kindOf, signed } from "./bars.js";
import { endOf } from "./ends.js";
import { explanations } from "../../explanations.js";
import { longText } from "./long_text.js";
import { conversation, hasTurns } from "./turns.js";

// `after`: the same completion re-scored; `isDim`: the filter does not select it.
export function card(one, at, { after, isDim }) {
  return el("article", { class: `card ${kindOf(one)}${isDim ? " dim" : ""}`, "aria-labelledby": `card-${at}` },
    el("header", {},
      el("h3", { id: `card-${at}` }, el("span", { class: "unseen" }, "Completion "), String(at + 1)),
      figure("Reward", one.reward === null ? "error" : number(one.reward), after && number(after.reward_after)),
      figure("Advantage", signed(one.advantage), after && signed(after.advantage_after))),
    el("p", { class: "small faint" }, facts(one).join(" · ")),
    hasTurns(one) ? conversation(one, at) : text(one.text),
    parts(one, after),
    explanations(one.explanations),
    one.feedback && !Object.keys(one.explanations).length && el("p", { class: "hint text" }, one.feedback));
}

function figure(name, value, after) {
  return el("span", { class: name.toLowerCase() }, el("small", {}, name), el("b", {}, value), after && ` → ${after}`);
}

function facts(one) {
  const found = [counted(one.num_tokens, "token"), endOf(one)];
  const { environment, seed } = one.episode ?? {};
  return [...found, `sampled after ${counted(one.policy_version, "update")}`, one.turns > 1 && `${one.turns} turns`,
    environment && `environment ${environment}, seed ${seed}`].filter(Boolean);
}

const text = (content) => (content ? [longText(content), padding(content)] : el("p", { class: "faint" }, "empty completion"));

// Whitespace at the end of a text is invisible, but a grader may score it.
function padding(content) {
  const length = content.length - content.trimEnd().length;
  return length > 1 && el("p", { class: "small faint" }, `ends with ${number(length)} spaces or line breaks`);
}

// The score of each part of the grader, or its error; a failed session is shown with its turns.
function parts(one, after) {
  const errors = Object.keys(one.errors).filter((name) => one.errors[name].message !== one.episode?.failure);
  const names = [...new Set([...Object.keys(one.parts), ...errors])];
  const rows = names.map((name) => [name, one.parts[name], one.errors[name]]);
  for (const [name, score] of Object.entries(after?.parts ?? {})) rows.push([`${name} (re-scored)`, score, after.errors[name]]);
  return rows.length > 0 && el("dl", { class: "parts" }, rows.map(([name, score, error]) =>
    el("div", { class: error ? "broken" : "" }, el("dt", {}, name), el("dd", {},
      error ? el("span", { class: "problem" }, el("code", {}, error.code), " ", quoted(error.message)) : number(score)))));
}
