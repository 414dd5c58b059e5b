// The grader: a small form for the common rules, JSON for all rules.

import { ANSWER_NAMES, pathOf } from "../../csv.js";
import { button, el } from "../../dom.js";
import { methodOf } from "./draft.js";
import { codeArea, idOf, input, jsonArea, paramField, select } from "./fields.js";

const FORMULA = "calculate_output";
const OUTPUT = "{{sample.output_text}}";
const PYTHON = `def grade(sample, item):
    return 1.0 if str(item["answer"]) in sample["output_text"] else 0.0
`;

const STYLE = `def grade(sample, item):
    return 1.0 if len(sample["output_text"]) <= 40 else 0.0
`;

// Each similarity measure: its label, and one line on it. All score from 0 to 1.
const MEASURES = {
  rouge_l: ["Words in order (ROUGE-L)", "The longest sequence of words that both texts have in this order, with gaps (F1)."],
  bleu: ["Phrases, strict (BLEU)", "Shared phrases of up to four words, as in machine translation; strict with short texts."],
  gleu: ["Phrases of a sentence (GLEU)", "Shared phrases of up to four words; suits single sentences better than BLEU."],
  meteor: ["Words and stems (METEOR)", "Shared words and word stems, with a penalty for another order."],
  fuzzy_match: ["Characters (fuzzy match)", "Similar characters: tolerates typing errors."],
};

// Each rule's initial value, and the fields of its form.
const RULES = {
  numeric: {
    label: "Numeric answer",
    start: { reference: "{{item.answer}}" },
    parts: (draft, at) => [reference(draft, at), tag(draft, at),
      paramField(`${at}.absolute_tolerance`, "Tolerance", "0 = exact",
        input(draft, `${at}.absolute_tolerance`, { kind: "number", min: 0, placeholder: "0" }))],
  },
  math: {
    label: "Math-equivalent answer",
    start: { reference: "{{item.answer}}" },
    parts: (draft, at) => [reference(draft, at)],
  },
  string_check: {
    label: "Text match",
    start: { operation: "eq", input: OUTPUT, reference: "{{item.answer}}" },
    parts: (draft, at) => [reference(draft, at),
      paramField(`${at}.operation`, "Compare", null, select(draft, `${at}.operation`, [
        ["eq", "is exactly the text"], ["ne", "is not the text"],
        ["like", "contains the text"], ["ilike", "contains the text (case-insensitive)"]]))],
  },
  text_similarity: {
    label: "Text similarity",
    start: { input: OUTPUT, reference: "{{item.answer}}", evaluation_metric: "rouge_l" },
    parts: (draft, at) => [reference(draft, at),
      measure(draft, `${at}.evaluation_metric`)],
  },
  format: {
    label: "Output format",
    start: { tags: ["think", "answer"] },
    parts: (draft, at) => [
      paramField(`${at}.tags`, "Tags in order", "For example, think, answer requires <think>…</think><answer>…</answer>.",
        input(draft, `${at}.tags`, { parse: names, format: (tags) => [].concat(tags).join(", ") }))],
  },
  python: {
    label: "Custom Python",
    start: { source: PYTHON },
    parts: (draft, at) => [paramField(`${at}.source`, "Code", "Runs in a sandbox without network. An exception is an error, not a score of 0.",
      codeArea(draft, `${at}.source`, { rows: 7 }))],
  },
  reasoning_gym: {
    label: "Reasoning Gym's own scorer",
    start: {},
    parts: (draft, at) => [tag(draft, at)],
  },
  multi: {
    label: "Several graders",
    start: {
      graders: {
        correct: { type: "string_check", operation: "eq", input: OUTPUT, reference: "{{item.answer}}" },
        style: { type: "python", source: STYLE },
      },
      calculate_output: "0.8 * correct + 0.2 * style",
    },
    parts: (draft, at) => multiParts(draft, at, {
      form: (part) => graderForm(draft, part, { isPart: true }),
      first: () => beginning("python", draft.answer),
    }),
  },
};
const OTHERS = ["length", "code_tests", "process", "score_model", "reward_model", "endpoint"];

const MOST_EXACT_WORDS = 8;
// A completion that is longer than the exact text is wrong, and sampling it takes time.
const MOST_TOKENS = { string_check: 64 };

const names = (text) => text.split(",").map((name) => name.trim()).filter(Boolean);

function reference(draft, at) {
  return paramField(`${at}.reference`, "Reference", "{{item.NAME}} is replaced with that field of the row.",
    input(draft, `${at}.reference`, { list: "row-fields" }));
}

function measure(draft, param) {
  const box = paramField(param, "Measure", "Score from 0 to 1.", select(draft, param, Object.entries(MEASURES).map(([name, [label]]) => [name, label])));
  const hint = box.querySelector(".hint");
  const draw = () => { hint.textContent = `${MEASURES[draft.get(param)]?.[1] ?? ""} Score from 0 to 1.`.trim(); };
  draft.watch(draw);
  return box;
}

function tag(draft, at) {
  return paramField(`${at}.tag`, "Only inside this tag", "Empty = the whole answer",
    input(draft, `${at}.tag`, { placeholder: "answer" }));
}

// A rule's initial value for the rows' field `name`.
export function beginning(type, name) {
  return forField({ type, ...RULES[type]?.start }, name);
}

// `rule` for rows whose reference is in the field `name` instead of `answer`.
export function forField(rule, name = "answer") {
  const renamed = (text) => text.replaceAll("item.answer", () => pathOf(name)).replaceAll('item["answer"]', () => `item[${JSON.stringify(name)}]`);
  return JSON.parse(JSON.stringify(rule), (key, value) => (typeof value === "string" ? renamed(value) : value));
}

// If the rows have other fields than assumed, an unchanged rule or task uses one of theirs; and the form's own choice of
// a rule is the likely one for their reference.
export function suit(draft, row) {
  const at = `method.${draft.type}.grader`;
  const grader = draft.get(at);
  const initial = [draft.preset, beginning(grader?.type)].find((rule) => rule && JSON.stringify(grader) === JSON.stringify(forField(rule, draft.answer)));
  draft.answer = answerOf(row);
  draft.likely = likelyRule(row[draft.answer]);
  if (!initial) return;
  const isGuess = grader.type === draft.guessed && initial !== draft.preset;
  if (isGuess) {
    limitTokens(draft, draft.guessed, draft.likely);
    draft.guessed = draft.likely;
  }
  draft.set(at, isGuess ? beginning(draft.guessed, draft.answer) : forField(initial, draft.answer));
}

// Changes the longest completion with the rule that the form chose, unless a person has changed it.
function limitTokens(draft, before, rule) {
  const at = `method.${draft.type}.hyperparameters.max_completion_tokens`;
  const usual = methodOf(draft.type)[draft.type].hyperparameters.max_completion_tokens;
  if (draft.get(at) === (MOST_TOKENS[before] ?? usual)) draft.set(at, MOST_TOKENS[rule] ?? usual);
}

// Almost no completion is exactly a long text, so similarity scores it.
function likelyRule(answer) {
  if (isNumber(answer)) return "numeric";
  return answer.trim().split(/\s+/).length > MOST_EXACT_WORDS ? "text_similarity" : "string_check";
}

// Also of a solution that ends with its number, such as "… #### 72". A missing reference may be one.
const isNumber = (value) => typeof value !== "string" || /(^|[^\p{L}\d])\d[\d.,/]*\s*[%.)]?\s*$/u.test(value);

// The field that most likely contains the reference.
function answerOf(row) {
  const named = ANSWER_NAMES.find((name) => name in row);
  return named ?? Object.keys(row).find((name) => name !== "" && name !== "prompt" && typeof row[name] !== "object");
}

// The box of the grader of a method at `at`, or of a part of `multi`; rendered again when its rule changes.
export function graderForm(draft, at, { isPart = false } = {}) {
  const box = el("div", { class: "stack" });
  const parts = el("div", { class: "stack" });
  let shown;
  const draw = () => {
    const type = draft.get(`${at}.type`);
    if (type === shown) return;
    shown = type;
    const common = RULES[type];
    parts.replaceChildren(...(common ? common.parts(draft, at) : [el("p", { class: "hint" }, "Edit this grader as JSON.")]));
    details.open ||= !common;
  };
  const options = [
    ...Object.entries(RULES).filter(([type]) => !isPart || type !== "multi").map(([type, rule]) => [type, rule.label]),
    ...OTHERS.map((type) => [type, `${type} (as JSON)`]),
  ];
  const kind = select(draft, `${at}.type`, options, (type) => {
    draft.set(at, beginning(type, draft.answer));
    return type;
  });
  const json = paramField(`${at}`, "Grader as JSON", null, ...jsonArea(draft, at, { rows: 8 }));
  const details = el("details", {}, el("summary", {}, "JSON, all options"), json);
  box.append(paramField(`${at}.type`, "Grader", null, kind), parts, details);
  draft.watch(draw);
  return box;
}

// The graders of `multi`, each with its own form, and the formula over their rewards. `form(at)`: the form of the grader at
// that path; `first`: the initial value of another grader.
function multiParts(draft, at, { form, first }) {
  const list = el("div", { class: "stack" });
  const graders = () => draft.get(`${at}.graders`) ?? {};
  let shown;
  const draw = () => {
    const names = Object.keys(graders());
    if (names.join() === shown) return;
    shown = names.join();
    list.replaceChildren(...names.map((name) => part(name, names.length > 1)));
  };
  const part = (name, isRemovable) => el("fieldset", { class: "grader-part" },
    el("legend", {}, el("code", {}, name)), form(`${at}.graders.${name}`),
    isRemovable && el("div", { class: "row" }, button("Remove", () => remove(name), { kind: "small", "aria-label": `Remove ${name}` })));
  const remove = (name) => {
    const { [name]: _removed, ...rest } = graders();
    draft.set(`${at}.graders`, rest);
  };
  const add = () => {
    const name = freeName(graders());
    draft.set(`${at}.graders`, { ...graders(), [name]: first() });
    const formula = draft.get(`${at}.${FORMULA}`);
    draft.set(`${at}.${FORMULA}`, formula ? `${formula} + ${name}` : name);
    document.getElementById(idOf(`${at}.graders.${name}.type`))?.focus();
  };
  draft.watch(draw);
  return [list, el("div", { class: "row" }, button("Add a grader", add)),
    paramField(`${at}.${FORMULA}`, "Formula", "The reward, from the names of the graders. For example, 0.8 * correct + 0.2 * style.",
      input(draft, `${at}.${FORMULA}`))];
}

function freeName(graders) {
  let at = Object.keys(graders).length + 1;
  while (`part${at}` in graders) at += 1;
  return `part${at}`;
}
