// The result of a grader run as elements. Boundary: rendering only; no requests.

import { duration, el, number, quoted } from "../../dom.js";
import { explanations, prints } from "../../explanations.js";

const DETAILS = ["python_grader_runtime_error_details", "model_grader_server_error_details"];

// → elements: the score, its parts, and what went wrong
export function scored(answer) {
  const { metadata } = answer;
  return [
    verdict(answer),
    el("dl", { class: "figures" },
      figure("Reward", answer.scorable ? number(answer.reward) : "none"),
      figure("Grader", metadata.type),
      figure("Duration", took(metadata.execution_time)),
      metadata.token_usage ? figure("Judge tokens", number(metadata.token_usage)) : null),
    parts(answer.sub_rewards),
    ...explanations(answer.explanations),
    answer.feedback && !Object.keys(answer.explanations).length ? el("p", { class: "hint text" }, answer.feedback) : null,
    errors(answer),
    ...prints(answer.printed),
  ].filter(Boolean);
}

const took = (seconds) => (seconds < 1 ? `${number(1000 * seconds, 2)} ms` : duration(seconds));

function verdict(answer) {
  if (answer.scorable) return el("h2", {}, "Scored");
  return el("div", { class: "note bad", role: "alert" },
    el("h2", {}, "Not scorable"),
    el("p", {}, "Training leaves such a completion out. It never counts as 0."));
}

function figure(name, value) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value));
}

function parts(rewards) {
  const rows = Object.entries(rewards);
  if (!rows.length) return null;
  return el("div", { class: "scroll" }, el("table", { class: "list parts" },
    el("thead", {}, el("tr", {}, ["Part", "Reward", ""].map((name) => el(name ? "th" : "td", {}, name)))),
    el("tbody", {}, rows.map(([name, reward]) => el("tr", {},
      el("th", { scope: "row" }, name), el("td", { class: "numeric" }, reward === null ? "none" : number(reward)),
      el("td", { class: "shown", "aria-hidden": "true" }, bar(reward)))))));
}

// Rewards are mostly between 0 and 1; values outside are clamped.
function bar(reward) {
  const share = Math.min(1, Math.max(0, reward ?? 0));
  return el("div", { class: "bar" }, el("i", { style: { width: `${100 * share}%` } }));
}

function errors(answer) {
  const named = Object.entries(answer.grader_errors);
  const flags = answer.metadata.errors;
  const messages = named.map(([, error]) => error.message).join("\n");
  const details = DETAILS.map((name) => flags[name]).filter((text) => text && !messages.includes(text));
  if (!named.length && !details.length) return null;
  return el("div", {},
    el("h2", {}, "Errors"),
    el("ul", { class: "problems" }, named.map(([part, error]) =>
      el("li", { class: "text" }, part && [el("strong", {}, part), " "], quoted(error.message), " ", el("code", { class: "faint" }, error.code)))),
    details.map((text) => el("pre", { class: "code", tabindex: 0 }, text)));
}
