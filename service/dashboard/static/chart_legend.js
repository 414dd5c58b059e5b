// A chart's series with their values, and the line at the step under the pointer.

import { el, isPresent, number } from "./dom.js";

// The names are buttons that hide a series; a single series has a value only. → {root, hidden, update, showAt}
export function legend(format, redraw) {
  const hidden = new Set();
  const root = el("span", { class: "legend" });
  let entries = [];
  const showAt = (step) => {
    for (const { series, value } of entries) {
      const y = step === null ? series.y.findLast(isPresent) : series.y[series.x.indexOf(step)];
      value.textContent = isPresent(y) ? format(y) : "–";
    }
  };
  const update = (series) => {
    if (series.map((one) => one.name).join() !== entries.map((one) => one.series.name).join()) root.replaceChildren();
    if (!root.hasChildNodes()) {
      root.classList.toggle("single", series.length === 1);
      entries = series.map((one) => ({ value: el("b", { class: "newest" }) }));
      root.replaceChildren(...series.map((one, at) => (series.length === 1 ? entries[at].value : entry(one, at))));
    }
    series.forEach((one, at) => (entries[at].series = one));
    showAt(null);
  };
  const entry = (series, at) => {
    const color = `var(--series-${(((series.color ?? at + 1) - 1) % 8) + 1})`;
    const pressed = el("button", { type: "button", "aria-pressed": "true", onclick: () => {
      if (!hidden.delete(series.name)) hidden.add(series.name);
      pressed.setAttribute("aria-pressed", String(!hidden.has(series.name)));
      redraw();
    } }, el("i", { "aria-hidden": "true", style: { "--color": color } }), series.name, entries[at].value);
    return pressed;
  };
  return { root, hidden, update, showAt };
}

// A vertical line at a step of the group, drawn over the plot; it follows the pointer and reports zooms.
// → {steps, listen(): once plotly has drawn, show(step or null)}
export function markerOf(plot, group, unit) {
  const text = el("b");
  const line = el("div", { class: "cursor", hidden: true, "aria-hidden": "true" }, text);
  const marker = { steps: [] };
  const axes = () => plot._fullLayout;
  marker.show = (step) => {
    line.hidden = step === null || !axes()?.xaxis || !isInside(step);
    if (line.hidden) return;
    const { xaxis, yaxis } = axes();
    if (line.parentNode !== plot) plot.append(line);
    const left = xaxis._offset + xaxis.l2p(step);
    Object.assign(line.style, { left: `${left}px`, top: `${yaxis._offset}px`, height: `${yaxis._length}px` });
    line.classList.toggle("left", xaxis.l2p(step) > xaxis._length / 2);
    text.textContent = `${unit} ${number(step, 7)}`;
  };
  const isInside = (step) => {
    const [low, high] = axes().xaxis.range;
    return step >= low && step <= high;
  };
  const nearest = (event) => {
    const { xaxis } = axes();
    const at = xaxis.p2l(event.clientX - plot.getBoundingClientRect().left - xaxis._offset);
    return marker.steps.reduce((best, step) => (Math.abs(step - at) < Math.abs(best - at) ? step : best), marker.steps[0] ?? null);
  };
  marker.listen = () => {
    if (marker.isListening) return;
    marker.isListening = true;
    plot.addEventListener("pointermove", (event) => group.point(nearest(event)));
    plot.addEventListener("pointerleave", () => group.point(null));
    plot.on("plotly_relayout", (change) => {
      const range = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
      if (range.every(Number.isFinite)) group.zoom(range);
    });
    plot.on("plotly_doubleclick", () => group.zoom(null));
  };
  return marker;
}
