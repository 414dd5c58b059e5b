// A group's rewards as bars, the mean as the waterline, each completion's advantage above its bar.
// Every bar is a button: click, Tab, and arrow keys.

import { counted, el, number } from "../../dom.js";
import { isTruncated } from "./ends.js";

const HEADROOM = 0.16; // of the drawing, for the advantages above the highest bar
const FOOTROOM = 0.04;

export class Bars {
  constructor(choose) {
    this.choose = choose;
    this.plot = el("div", { class: "bars-plot", role: "group", onkeydown: (event) => this.move(event) });
    this.scale = el("div", { class: "bars-scale", "aria-hidden": "true" });
    this.caption = el("figcaption", { class: "small" });
    this.window = el("div", { class: "bars-scroll" }, this.plot);
    this.root = el("figure", { class: "bars" },
      this.caption, el("div", { class: "bars-body" }, this.scale, this.window));
  }

  // `after`: the same group re-scored; its rewards are marks across the bars.
  draw(group, { chosen, admits, after }) {
    const rewards = group.completions.map((one) => one.reward);
    const others = after?.completions.map((one) => one.reward_after) ?? [];
    const level = scaleOf([...rewards, ...others].filter((reward) => reward !== null));
    const mean = group.mean_reward;
    this.caption.textContent = "Reward of each completion. The line is the group mean; the number above a bar is its " +
      `advantage${after ? "; the marks are the rewards of the other grader" : ""}.`;
    this.plot.setAttribute("aria-label", `Rewards of ${counted(rewards.length, "completion")}, mean ${number(mean)}`);
    this.plot.style.setProperty("--count", rewards.length);
    this.scale.replaceChildren(...level.ticks.map((tick) => el("span", { style: { bottom: level.at(tick) } }, number(tick))));
    this.columns = group.completions.map((one, at) => this.column(one, at, {
      level, isDim: !admits(one), after: after?.completions[at],
    }));
    this.plot.replaceChildren(
      el("i", { class: "zero", style: { bottom: level.at(0) } }),
      mean === null ? "" : el("i", { class: "water", style: { height: level.at(mean) } }),
      ...this.columns,
      mean === null ? "" : el("span", { class: "waterline", style: { bottom: level.at(mean) }, "data-value": mean },
        el("b", {}, `mean ${number(mean)}`)));
    this.mark(chosen);
  }

  column(one, at, { level, isDim, after }) {
    const isScored = one.reward !== null;
    const [low, high] = isScored ? [Math.min(0, one.reward), Math.max(0, one.reward)] : [0, 0];
    return el("button", {
      type: "button", class: `column ${kindOf(one)}${isDim ? " dim" : ""}${isTruncated(one) ? " truncated" : ""}`,
      "aria-label": spoken(one, at), "data-reward": one.reward, "data-advantage": one.advantage,
      onclick: () => this.pick(at),
    },
    el("i", { class: "fill", style: { bottom: level.at(low), height: `calc(${level.at(high)} - ${level.at(low)})` } }),
    after && after.reward_after !== null && el("i", { class: "rescored", style: { bottom: level.at(after.reward_after) } }),
    el("span", { class: "advantage", style: { bottom: level.at(high) } }, isScored ? signed(one.advantage) : "error"),
    el("span", { class: "foot" }, String(at + 1), isTruncated(one) && el("b", { title: "truncated" }, "✂")));
  }

  pick(at) {
    this.mark(at);
    this.choose(at);
  }

  mark(chosen) {
    this.columns.forEach((column, at) => column.setAttribute("aria-pressed", at === chosen));
    const column = this.columns[chosen];
    if (!column || !this.window.isConnected) return;
    const hidden = column.offsetLeft + column.offsetWidth - this.window.clientWidth;
    if (hidden > this.window.scrollLeft || column.offsetLeft < this.window.scrollLeft) this.window.scrollLeft = hidden + 8;
  }

  move(event) {
    const at = this.columns.indexOf(event.target);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: this.columns.length - 1 }[event.key];
    if (at < 0 || !this.columns[to]) return;
    event.preventDefault();
    this.columns[to].focus();
    this.pick(to);
  }
}

// A completion beside its group: above, below or level with the mean, or unscored.
export function kindOf({ reward, advantage }) {
  if (reward === null) return "unscored";
  return advantage > 0 ? "above" : advantage < 0 ? "below" : "level";
}

// "+1.21", "−0.4", "0"
export function signed(value) {
  const text = number(Number(value.toFixed(2)), 3);
  return value > 0 && text !== "0" ? `+${text}` : text;
}

function spoken(one, at) {
  const reward = one.reward === null ? "not scored" : `reward ${number(one.reward)}, advantage ${signed(one.advantage)}`;
  return `Completion ${at + 1}: ${reward}${isTruncated(one) ? ", truncated" : ""}`;
}

// Rewards → heights in percent; 0 is always visible.
function scaleOf(rewards) {
  const low = Math.min(0, ...rewards);
  const high = Math.max(0, ...rewards);
  const span = high - low || 1;
  const at = (value) => `${(100 * (FOOTROOM + ((value - low) / span) * (1 - HEADROOM - FOOTROOM))).toFixed(3)}%`;
  return { at, ticks: [...new Set([low, 0, high || (low ? 0 : 1)])] };
}
