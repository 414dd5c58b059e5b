// A completion of several turns as a conversation: what the model wrote, what the environment or a tool answered, and
// the reward of each turn.

import { el, number } from "../../dom.js";
import { longText } from "./long_text.js";

export const hasTurns = (one) => one.episode !== null || one.tool_turns.length > 0;

export function conversation(one, at) {
  const turns = one.episode ? turnsOfEpisode(one.episode) : one.tool_turns.map(toolTurn);
  return [
    turns.length > 0 && el("div", { class: "turns", role: "region", tabindex: 0, "aria-label": `Conversation of completion ${at + 1}` },
      el("ol", {}, turns.map(turn))),
    one.episode?.failure && failure(one.episode.failure),
    one.text && el("details", {}, el("summary", {}, "As one text"), longText(one.text)),
  ];
}

// → [{said, answers: [{from, text, isFailed}], outcome: [text]}]; agents give no rewards of turns, and nothing follows
// their last one.
function turnsOfEpisode({ turns, unanswered, failure: failed }) {
  const isRewarded = turns.some(({ reward }) => reward !== null);
  const found = turns.map(({ action, observation, reward, done, answers }) => ({
    said: action, answers: [...answers.map(toolAnswer), ...(observation ? [{ from: "Environment", text: observation }] : [])],
    outcome: [isRewarded && (reward === null ? "No reward" : ["Reward ", el("b", {}, number(reward))]), done && "Done"],
  }));
  return unanswered ? [...found, { said: unanswered, answers: [], outcome: [failed ? "Session failed" : "Cut, not sent"] }] : found;
}

const toolTurn = ({ text, answers }) => ({ said: text, outcome: [], answers: answers.map(toolAnswer) });

const toolAnswer = ({ name, text, failed }) => ({ from: `Tool ${name}`, text, isFailed: failed });

function turn({ said, answers, outcome }, at) {
  return el("li", {},
    el("div", { class: "row between" }, el("h4", {}, `Turn ${at + 1}`), outcome.filter(Boolean).map((one) => el("span", { class: "small" }, one))),
    el("div", { class: "said by-model" }, el("p", { class: "role" }, "Model"), longText(said || "(empty)")),
    answers.map(({ from, text, isFailed }) => el("div", { class: "said by-other" },
      el("p", { class: "role" }, from, isFailed && el("span", { class: "problem" }, " · failed")), longText(text || "(empty)", "answer-text"))));
}

function failure(reason) {
  return el("div", { class: "note bad" }, el("p", {}, el("strong", {}, "Session failed: "), reason),
    el("p", { class: "small" }, "The completion is not scored and does not count in the group's mean."));
}
