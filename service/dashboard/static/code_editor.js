// An editor of Python graders over a <textarea>: Ace (of the package django-ace), loaded with the first editor.
// The textarea keeps the text, so without Ace it is edited there. Boundary: one text; what it means is the page's.

import { el } from "./dom.js";
import { vendored } from "./vendor.js";

const HELP = "Ctrl+Space completes. Escape, then Tab leaves the editor.";
const MOST_LINES = 40;
const SAMPLE = {
  output_text: "text of the completion", output_json: "that text as JSON, otherwise None", output_tools: "its tool calls",
  choices: "choices[0].message, as in OpenAI's API", finish_reason: "stop, or length if it was cut", num_tokens: "its length in tokens",
};
const ARGUMENTS = { sample: "the completion", item: "the row of the dataset" };
const editors = new WeakMap(); // the element that has the focus in an editor → its Ace

// `area` is on the page a moment later, with its id. `columns()`: the names in `item`; every edit is an `input` event of
// the area. → set(text), for changes from elsewhere
export function codeEditor(area, columns) {
  let ace = null;
  ready().then(() => { ace = edited(area, columns); }, () => {});
  return (text) => {
    area.value = text;
    if (!ace || ace.getValue() === text) return;
    ace.isTyped = false;
    ace.session.setValue(text);
    ace.isTyped = true;
  };
}

// Marks the line that the text of an error names, none if it names none. `control`: what a label points to.
export function markLine(control, text) {
  const ace = editors.get(control);
  if (!ace) return;
  unmark(ace);
  const line = lineOf(text);
  if (line === undefined || line > ace.session.getLength()) return;
  ace.session.setAnnotations([{ row: line - 1, column: 0, text, type: "error" }]);
  ace.marker = ace.session.addMarker(new window.ace.Range(line - 1, 0, line - 1, 1), "failed-line", "fullLine");
  ace.renderer.scrollCursorIntoView({ row: line - 1, column: 0 });
}

function unmark(ace) {
  ace.session.clearAnnotations();
  if (ace.marker !== undefined) ace.session.removeMarker(ace.marker);
}

// "line 2: invalid syntax", or the innermost line of a traceback that is the grader's own
function lineOf(text) {
  const place = [...text.matchAll(/File "<grader>", line (\d+)/g)].at(-1) ?? /(?:^|: )line (\d+): /.exec(text);
  return place ? Number(place[1]) : undefined;
}

async function ready() {
  await vendored("ace/ace.js");
  await Promise.all([vendored("ace/mode-python.js"), vendored("ace/ext-language_tools.js")]);
}

function edited(area, columns) {
  const host = el("div", { class: "code-editor" });
  area.before(host);
  const ace = window.ace.edit(host, {
    mode: "ace/mode/python", value: area.value, minLines: area.rows, maxLines: MOST_LINES, tabSize: 4, fontSize: "13px",
    showPrintMargin: false, showFoldWidgets: false, useWorker: false, fixedWidthGutter: true, textInputAriaLabel: area.labels[0]?.textContent,
    enableBasicAutocompletion: [completer(columns)], enableLiveAutocompletion: true,
  });
  ace.isTyped = true;
  ace.renderer.setTheme({ cssClass: "ace-grpo", cssText: "" });
  ace.session.on("change", () => {
    unmark(ace);
    if (!ace.isTyped) return;
    area.value = ace.getValue();
    area.dispatchEvent(new Event("input"));
  });
  ace.textInput.setAriaLabel();
  leaveWithTab(ace);
  takePlace(ace.textInput.getElement(), area);
  editors.set(ace.textInput.getElement(), ace);
  return ace;
}

// Attaches the area's label and the text of its problem to the editor's own input.
function takePlace(input, area) {
  const help = el("p", { class: "hint", id: `${area.id}-help` }, HELP);
  area.after(help);
  input.id = area.id;
  input.setAttribute("aria-describedby", [area.getAttribute("aria-describedby"), help.id].filter(Boolean).join(" "));
  area.removeAttribute("id");
  area.hidden = true;
}

// Tab indents; after Escape it moves the focus, as everywhere else on the page.
function leaveWithTab(ace) {
  const bind = (forth, back) => {
    ace.commands.bindKey("Tab", forth);
    ace.commands.bindKey("Shift-Tab", back);
  };
  ace.commands.addCommand({ name: "leave", bindKey: "Esc", exec: () => bind(null, null) });
  ace.on("focus", () => bind("indent", "outdent"));
}

// The list of completions: in a landmark, and without a second element to focus.
function accessible(completion) {
  completion.parentNode = document.getElementById("main");
  completion.getPopup().renderer.textarea.tabIndex = -1;
}

const completer = (columns) => ({
  triggerCharacters: ['"', "'"],
  getCompletions(ace, session, place, prefix, done) {
    accessible(ace.completer);
    const before = session.getLine(place.row).slice(0, place.column);
    const [, argument, quote] = /\b(sample|item)(?:\[|\.get\()(["']?)\w*$/.exec(before) ?? [];
    if (!argument) return done(null, ace.completer.autoShown ? [] : words(session, place, prefix));
    const fields = argument === "sample" ? SAMPLE : Object.fromEntries(columns().map((name) => [name, "column of the dataset"]));
    done(null, offers(fields, (name) => (quote ? name : `"${name}"`)));
  },
});

function words(session, place, prefix) {
  return [...offers(ARGUMENTS, (name) => name), ...session.getMode().getCompletions("start", session, place, prefix)];
}

const offers = (meanings, valueOf) => Object.entries(meanings).map(([caption, meta], at) =>
  ({ caption, value: valueOf(caption), meta, score: 1000 - at }));
