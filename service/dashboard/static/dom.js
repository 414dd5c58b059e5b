// Elements, the states of every page (loading, empty, failed), and the format of numbers and times.
// Boundary: data becomes a text node or an attribute, never markup.

import { now } from "./http.js";
import { inWords, settingLabel } from "./labels.js";

const SVG = "http://www.w3.org/2000/svg";

export const isPresent = (value) => value !== null && value !== undefined;

// el("button", {class: "primary", onclick: f, "aria-label": "…"}, "text", child, [more], null)
// `on…` are listeners, booleans are set or left out, `style` is an object; everything else is an attribute.
export function el(tag, props, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (!isPresent(value) || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [rule, set] of Object.entries(value)) element.style.setProperty(rule, set);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((child) => isPresent(child) && child !== false));
  return element;
}

// The top of a page: its h1 (which the frame focuses), details, and its actions on the right.
export function heading(title, { above, below, actions = [] } = {}) {
  document.title = `${title} · GRPO service`;
  return el("div", { class: "heading" },
    el("div", {}, above, el("h1", { tabindex: -1 }, title), below),
    el("div", { class: "actions" }, actions));
}

export function section(title, ...children) {
  const id = `section-${(section.count = (section.count ?? 0) + 1)}`;
  return el("section", { "aria-labelledby": id }, el("h2", { id }, title), children);
}

export function button(text, onclick, { kind = "", ...props } = {}) {
  return el("button", { type: "button", class: kind, onclick, ...props }, text);
}

// A button that loads the next rows of a list. `load()` → what gets the focus in the first new one: the button loses
// it while it is disabled. Without a new row the button gets it back.
export function moreButton(text, load, props = {}) {
  const more = button(text, async () => {
    more.disabled = true;
    const first = await load();
    more.disabled = false;
    if ([document.body, more].includes(document.activeElement)) (first ?? more).focus({ preventScroll: true });
  }, props);
  return more;
}

// A control below its label; `more` follows it, such as a hint. The control has an id.
export function field(label, control, ...more) {
  return el("div", { class: "field" }, el("label", { for: control.id }, label), control, more);
}

// The options of a select: [value, text] each.
export const optionsOf = (choices) => choices.map(([value, text]) => el("option", { value }, text));

// A list as a table that scrolls sideways; `rows` are <tr>. With "cards" in `kind`, a phone shows each row as a card.
export function table(caption, columns, rows, kind = "") {
  const head = columns.map((name) => el(name ? "th" : "td", { scope: name ? "col" : null, role: name ? "columnheader" : "cell", title: name || null }, name));
  const root = el("div", { class: "panel flush scroll", role: "region", "aria-label": caption, tabindex: 0 },
    el("table", { class: `list ${kind}`, role: "table" },
      el("caption", { class: "unseen" }, caption),
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head)), el("tbody", { role: "rowgroup" })));
  addRows(root, rows);
  return root;
}

// Rows for a `table`. Each cell gets the name of its column, which a card shows, and the role that a card would lose.
export function addRows(root, rows) {
  const names = [...root.querySelector("thead tr").children].map((cell) => cell.textContent);
  for (const row of rows) {
    row.setAttribute("role", "row");
    [...row.children].forEach((cell, at) => {
      cell.dataset.name = names[at];
      cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
    });
  }
  root.querySelector("tbody").append(...rows);
}

// ---- states: each replaces what is in `root`

export function loading(root, what = "Loading") {
  root.replaceChildren(el("p", { class: "state busy", role: "status" }, `${what}…`));
}

export function empty(root, title, hint, ...actions) {
  root.replaceChildren(el("div", { class: "state" }, el("h2", {}, title), hint && el("p", {}, hint), actions));
}

// `retry`: the button's action; none if it would fail again. Without a connection it also runs when that is back.
export function failed(root, error, retry, title = "h2") {
  const [lead] = error.message.split(error.problems?.[0]?.message); // the list shows the rest
  const shown = el("div", { class: "state error", role: "alert" },
    el(title, {}, titleOf(error)),
    lead && el("p", {}, inWords(lead)),
    problems(error),
    error.requestId && el("p", { class: "faint" }, "Request ", el("code", {}, error.requestId)),
    retry && button("Try again", retry));
  root.replaceChildren(shown);
  if (error.status === 0 && retry) {
    window.addEventListener("service-back", () => shown.isConnected && retry(), { once: true });
  }
}

// An ApiError's list of {param, message}, or nothing.
export function problems(error) {
  if (!error.problems?.length) return null;
  return el("ul", { class: "problems" }, error.problems.map((one) =>
    el("li", {}, one.param && el("strong", { title: one.param }, settingLabel(one.param)), " ", inWords(one.message.replace(`${one.param}: `, "")))));
}

function titleOf(error) {
  if (error.status === 0) return "No connection to the service";
  if (error.status === 404) return "Not found";
  if (error.status === 403) return "Not allowed with this key";
  return error.status >= 500 ? "Server error" : "Request failed";
}

// Announces the text to screen readers only.
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

let dialogs = 0;

// Opens a modal dialog, which is removed when it closes; `closed` then gets its return value. → the dialog.
export function openDialog(title, content, closed) {
  const id = `dialog-${++dialogs}`;
  const dialog = el("dialog", { "aria-labelledby": id, onclose: () => {
    closed?.(dialog.returnValue);
    dialog.remove();
  } }, el("h2", { id }, title), content);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// A text in a modal dialog with a button that closes it.
export function showMessage(title, text) {
  const dialog = openDialog(title, [
    el("p", { role: "alert" }, text),
    el("div", { class: "actions" }, button("Close", () => dialog.close(), { autofocus: true })),
  ]);
}

// A yes-or-no question in a modal dialog. → whether the answer was yes.
export function confirmed(question, { detail, yes, no, kind = "danger" }) {
  return new Promise((resolve) => {
    const dialog = openDialog(question, [
      detail && el("p", {}, detail),
      el("div", { class: "actions" },
        button(no, () => dialog.close("no"), { autofocus: true }),
        button(yes, () => dialog.close("yes"), { kind })),
    ], (answer) => resolve(answer === "yes"));
  });
}

// ---- numbers, sizes, times

// At most four significant digits; an exponent for very small and very large numbers.
export function number(value, digits = 4) {
  if (!isPresent(value) || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(2).replace("e", " e").replaceAll("-", "−");
  const rounded = Number(value.toPrecision(digits));
  const text = size >= 10 ** digits ? String(Math.round(value)) : String(rounded);
  const [whole, fraction] = text.split(".");
  const grouped = whole.replace("-", "−").replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");
  return fraction === undefined ? grouped : `${grouped}.${fraction}`;
}

// "1 row", "2 000 rows"
export const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

// Three decimals, so that the numbers of a column line up; `number` for very small and large ones.
export function decimals(value) {
  const size = Math.abs(value);
  return Number.isFinite(value) && size < 1000 && (size >= 1e-3 || size === 0) ? value.toFixed(3).replace("-", "−") : number(value);
}

export const percent = (value) => (isPresent(value) ? `${number(100 * value, 3)} %` : "–");

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; count >= 1024 && unit < units.length - 1; unit += 1) count /= 1024;
  return `${number(count, 3)} ${units[unit]}`;
}

export function duration(seconds) {
  if (!isPresent(seconds)) return "–";
  if (seconds > 0 && seconds < 1e-3) return "< 1 ms";
  if (seconds < 10) return `${number(seconds, 2)} s`;
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.round(hours / 24)} days`;
}

// Seconds from a job's start to its end or, while it runs, to now. Not negative: the database's clock may be set back.
export const secondsRun = ({ started_at: from, finished_at: to }) => Math.max(0, (to ?? now()) - from);

// Unix seconds → a <time> with the relative time, and the full date as its title.
export function ago(unix) {
  if (!unix) return "–";
  const past = now() - unix;
  const words = past < 45 ? "just now" : `${duration(past)} ago`;
  return el("time", { datetime: new Date(unix * 1000).toISOString(), title: moment(unix) }, words);
}

export function moment(unix) {
  return new Date(unix * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

// An error's text; a traceback keeps its lines, so that its carets stay aligned.
export const quoted = (text) => (text.includes("\n") ? el("pre", { class: "code", tabindex: 0 }, text) : text);
