// The request that is being written: one plain object, read and changed by dotted paths.
// Boundary: no document and no requests; the form, the JSON and the address all go through here.

const KEPT = "grpo.draft";

const LORA = { rank: 16 };
const METHODS = {
  reinforcement: {
    grader: { type: "numeric", reference: "{{item.answer}}" },
    hyperparameters: {
      group_size: 8, prompts_per_step: 8, n_steps: 50, max_completion_tokens: 256,
      learning_rate: 1e-5, beta: 0.04, lora: LORA,
    },
  },
  supervised: { hyperparameters: { n_epochs: 3, batch_size: 8, learning_rate: 1e-4, max_tokens: 2048, lora: LORA } },
  training_free: {
    grader: { type: "numeric", reference: "{{item.answer}}" },
    hyperparameters: { group_size: 5, prompts_per_step: 32, n_epochs: 3, max_completion_tokens: 1024 },
  },
};

const SPELLINGS = { group_size: "compute_multiplier", prompts_per_step: "batch_size", learning_rate: "learning_rate_multiplier", n_steps: "n_epochs" };
const OTHER_SPELLINGS = Object.fromEntries(Object.entries(SPELLINGS).flatMap(([one, other]) => [[one, other], [other, one]]));

export function methodOf(type) {
  return { type, [type]: structuredClone(METHODS[type]) };
}

export function blank() {
  return { model: "", training_file: "", method: methodOf("reinforcement") };
}

// A job's own request, as far as another job can ask the same.
export function requestOf(job) {
  const body = { model: job.model, training_file: job.training_file };
  for (const name of ["validation_file", "suffix", "metadata"]) if (job[name]) body[name] = job[name];
  if (job.resources?.gpus) body.resources = job.resources;
  return { ...body, method: ownMethod(job.method) };
}

// A request with a merge patch over it, as `POST …/clone` takes one: null removes a field, and a setting takes
// the place of its other spelling.
export function changed(request, patch) {
  if (!isObject(patch)) return patch;
  const fields = isObject(request) ? { ...request } : {};
  for (const [name, value] of Object.entries(patch)) {
    delete fields[OTHER_SPELLINGS[name]];
    if (value === null) delete fields[name];
    else fields[name] = changed(fields[name], value);
  }
  return fields;
}

// Jobs show rules that OpenAI does not know as `python`, with their true type in `rule`.
export function ownMethod(method) {
  const { rule, ...rest } = method;
  const type = rule ?? method.type;
  const settings = structuredClone(method[method.type]);
  if (settings.grader) settings.grader = ownGrader(settings.grader);
  dropOtherSpellings(settings.hyperparameters);
  return rule ? { type, [type]: settings } : { ...rest, [type]: settings };
}

// A job shows every spelling of a setting; with one of them changed the other would contradict it.
function dropOtherSpellings(hyperparameters) {
  for (const [own, other] of Object.entries(SPELLINGS)) if (hyperparameters[own]) delete hyperparameters[other];
}

function ownGrader({ rule, source, ...grader }) {
  return rule ? { ...grader, type: rule } : source === undefined ? grader : { ...grader, source };
}

// Who listens is called after every change, whoever made it.
export function draftOf(body) {
  const listeners = [];
  const told = () => {
    sessionStorage.setItem(KEPT, JSON.stringify(draft.body));
    for (const listener of listeners) listener();
  };
  const draft = {
    body,
    listen: (listener) => listeners.push(listener),
    get type() { return draft.body.method?.type; },
    get: (path) => path.split(".").reduce((value, name) => value?.[name], draft.body),
    set(path, value) {
      const names = path.split(".");
      const last = names.pop();
      const holder = names.reduce((value, name) => (value[name] = isObject(value[name]) ? value[name] : {}), draft.body);
      if (value === undefined) delete holder[last];
      else holder[last] = value;
      told();
    },
    replace(other) {
      draft.body = other;
      told();
    },
  };
  return draft;
}

// What was being written when the page was left; null where nothing was.
export function keptDraft() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEPT));
    return isObject(kept?.method) ? kept : null;
  } catch {
    return null; // not ours, or of another version: begin anew
  }
}

export function forgetDraft() {
  sessionStorage.removeItem(KEPT);
}

export function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

// Which of the `params` a problem belongs to: the longest that it begins with. A template that no row
// resolves is told about the row, and belongs to the field that holds it.
export function paramOf(problem, params, draft) {
  const template = /\{\{[^}]*\}\}/.exec(problem.message)?.[0];
  const holder = template && params.find((param) => {
    const value = draft.get(param);
    return typeof value === "string" && value.includes(template);
  });
  if (holder) return holder;
  const fits = (param) => problem.param === param || /^[.[]/.test(problem.param.slice(param.length));
  return params.filter((param) => problem.param?.startsWith(param) && fits(param)).sort((a, b) => b.length - a.length)[0];
}
