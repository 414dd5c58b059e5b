// The environments of a job: their servers, and how their episodes went in the newest steps. Boundary: a job and its
// metrics in, elements out.

import { el, number, percent, section, table } from "../../dom.js";

const NEWEST = 10; // steps
const COLUMNS = ["Environment", "Failed sessions", "Last answered", "Turns", "Reward", "Type", "Host"];

// `rows`: the job's metrics so far. → a section, or nothing for a job without environments.
export function environments({ method }, rows) {
  const listed = Object.entries(method[method.type]?.environments ?? {});
  return listed.length > 0 && section("Environments",
    table("Sessions of each environment", COLUMNS, listed.map(([name, options]) => row(name, options, rows)), "tight"),
    el("p", { class: "hint" }, `Means of the newest ${NEWEST} steps. A failed session is not scored.`));
}

function row(name, { type, url }, rows) {
  const values = (metric) => rows.map((one) => [one.step, one[`environments/${name}/${metric}`]]).filter(([, value]) => value !== undefined);
  const mean = (metric) => {
    const newest = values(metric).slice(-NEWEST);
    return newest.length ? newest.reduce((sum, [, value]) => sum + value, 0) / newest.length : null;
  };
  const failed = mean("failure_rate");
  return el("tr", {}, el("th", { scope: "row" }, name),
    el("td", { class: failed > 0 ? "problem" : "" }, percent(failed)), answered(values("failure_rate")),
    el("td", {}, number(mean("turns_mean"))), el("td", {}, number(mean("reward"))),
    el("td", {}, type), el("td", {}, URL.canParse(url) ? new URL(url).host : url));
}

// The last step in which a session answered; marked if later ones failed.
function answered(failures) {
  const last = failures.findLast(([, share]) => share < 1);
  if (!failures.length) return el("td", {}, "–");
  return el("td", { class: last === failures.at(-1) ? "" : "problem" }, last ? `step ${number(last[0], 7)}` : "never");
}
