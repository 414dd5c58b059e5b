// What a sweep shows and what to try next: the best run on held-out rows, whether its interval is apart from the
// second's, settings whose best value is the last one tried, and the form with the best run's values.

import { can } from "../../access.js";
import { changeOf } from "../../change.js";
import { el } from "../../dom.js";
import { isOver, jobName } from "../../job_parts.js";
import { settingLabel } from "../../labels.js";

// names: of the settings; runs: [{job, settings, change}], best held-out change first. → elements
export function nextStep(names, runs) {
  const known = runs.filter((run) => run.change !== null);
  const isRunning = !runs.every(({ job }) => isOver(job));
  if (!known.length) return box(isRunning ? ["Results on held-out rows come with the first evaluations."] : [
    "No run has a result on held-out rows, so no setting is known to be better.", "Hold out some rows, and run the sweep again.",
  ], runs[0].job);
  const [best, second] = known;
  const advice = isRunning ? ["Wait until all runs are finished."] : adviceFor(names, known);
  return box([headline(best, isRunning), [comparison(best, second), ...advice].join(" ")], best.job);
}

function box([text, more], job) {
  return el("div", { class: "panel next-step" },
    el("div", {}, el("p", {}, el("strong", {}, text)), more && el("p", {}, more)),
    can.write && el("a", { class: "button primary", href: `#/new?from=${job.id}` }, "Open its values in the form"));
}

function headline({ job }, isRunning) {
  const { text, interval, difference, tone } = changeOf(job);
  const numbers = `${text}${interval ? ` (95% CI ${interval})` : ""}`;
  const name = el("a", { href: `#/jobs/${job.id}` }, jobName(job));
  if (difference <= 0) return ["No run is better on held-out rows than before training. The best is ", name, `: ${numbers}.`];
  return [`Best on held-out rows${isRunning ? " so far" : ""}: `, name, `, ${numbers}${tone === "unclear" ? ", not significant" : ""}.`];
}

function comparison(best, second) {
  if (!second) return "It is the only run with a result on held-out rows.";
  const { text, interval } = changeOf(second.job);
  if (isApart(best, second)) return `Its interval is apart from that of the second run (${text}, ${interval}): it is better.`;
  if (!interval || !changeOf(best.job).interval) return `The second run has ${text}; without intervals, the order may be chance.`;
  return `Its interval overlaps that of the second run (${text}, ${interval}): the order may be chance.`;
}

function isApart(best, second) {
  const [low, high] = [best.job.eval.verdict.low, second?.job.eval.verdict.high];
  return Number.isFinite(low) && Number.isFinite(high) && low > high;
}

// Beyond the last value tried if that was the best one; otherwise more evidence, or more steps.
function adviceFor(names, known) {
  const [best, second] = known;
  const edges = names.map((name) => edge(name, known)).filter(Boolean);
  const clear = second && !isApart(best, second) ? ["Repeat both with other seeds, or hold out more rows."] : [];
  if (edges.length || clear.length) return [...edges, ...clear];
  return best.change > 0 ? ["Train longer with its values."] : ["Read the findings of its page before the next sweep."];
}

function edge(name, known) {
  const given = known[0].settings[name];
  const tried = known.map((run) => Number(run.settings[name])).filter(Number.isFinite);
  const [low, high, value] = [Math.min(...tried), Math.max(...tried), Number(given)];
  if (low === high || (value !== low && value !== high)) return null;
  const [end, side] = value === low ? ["lowest", "lower"] : ["highest", "higher"];
  return `${settingLabel(name)} ${given} is the ${end} value tried: try ${side} ones.`;
}
