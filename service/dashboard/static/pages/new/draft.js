// The draft of a request: one plain object, read and changed by dotted paths.
// Boundary: no DOM and no requests; the form, the JSON and the address all use this draft.

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

// A job's own request, as far as another job can repeat it.
export function requestOf(job) {
  const body = { model: job.model, training_file: job.training_file };
  for (const name of ["validation_file", "validation_split", "suffix", "metadata"]) if (job[name]) body[name] = job[name];
  if (job.resources?.gpus || job.resources?.gpu_memory_gb) body.resources = job.resources;
  return { ...body, method: ownMethod(job.method) };
}

// GRPO from the model of a supervised job, on its rows. With its seed, the same rows are held out.
// `counterpart(id)`: id of the file with the same rows for GRPO.
export function continuationOf(job, counterpart) {
  const body = { model: job.fine_tuned_model, training_file: counterpart(job.training_file), seed: job.seed };
  if (job.validation_file) body.validation_file = counterpart(job.validation_file);
  if (job.validation_split) body.validation_split = job.validation_split;
  return { ...body, method: methodOf("reinforcement") };
}

// A request with a merge patch applied, like `POST …/clone`: null removes a field, and a setting replaces its
// other spelling.
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

// Jobs return rules that OpenAI does not have as `python`, with their real type in `rule`.
export function ownMethod(method) {
  const { rule, ...rest } = method;
  const type = rule ?? method.type;
  const settings = structuredClone(method[method.type]);
  if (settings.grader) settings.grader = ownGrader(settings.grader);
  dropOtherSpellings(settings.hyperparameters);
  return rule ? { type, [type]: settings } : { ...rest, [type]: settings };
}

// A job returns every spelling of a setting; if one is changed, the other would contradict it.
function dropOtherSpellings(hyperparameters) {
  for (const [own, other] of Object.entries(SPELLINGS)) if (hyperparameters[own]) delete hyperparameters[other];
}

function ownGrader({ rule, source, ...grader }) {
  return rule ? { ...grader, type: rule } : source === undefined ? grader : { ...grader, source };
}

// `listen(f)`: calls f after every change; `watch(f)`: also at once.
export function draftOf(body) {
  const listeners = [];
  const notify = () => {
    sessionStorage.setItem(KEPT, JSON.stringify(draft.body));
    for (const listener of listeners) listener();
  };
  const draft = {
    body,
    guessed: "numeric", // the rule that the form chose; null: it chooses none
    likely: "numeric", // the rule that fits the reference of the first row
    preset: null, // the grader of the chosen task, for rows with a field `answer`
    listen: (listener) => listeners.push(listener),
    watch(listener) {
      draft.listen(listener);
      listener();
    },
    get type() { return draft.body.method?.type; },
    get: (path) => path.split(".").reduce((value, name) => value?.[name], draft.body),
    set(path, value) {
      const names = path.split(".");
      const last = names.pop();
      const holder = names.reduce((value, name) => (value[name] = isObject(value[name]) ? value[name] : {}), draft.body);
      if (value === undefined) delete holder[last];
      else holder[last] = value;
      notify();
    },
    replace(other) {
      draft.body = other;
      notify();
    },
  };
  return draft;
}

// The stored draft of an earlier visit; null if there is none.
export function keptDraft() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(KEPT));
    return isObject(kept?.method) ? kept : null;
  } catch {
    return null; // damaged, or of another version
  }
}

export function forgetDraft() {
  sessionStorage.removeItem(KEPT);
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

// The one of `params` that a problem belongs to: the longest prefix of its path. A template that no row
// resolves is reported for the row, and belongs to the field that contains it.
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
