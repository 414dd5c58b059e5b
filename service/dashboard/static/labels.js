// Names of the request's settings and of metrics as people read them: labels, and texts in which labels replace names.

// By the last names of their paths. Other names get spaces and a capital.
const SETTINGS = {
  group_size: "Completions per prompt",
  prompts_per_step: "Prompts per step",
  n_steps: "Steps",
  max_completion_tokens: "Max completion tokens",
  learning_rate: "Learning rate",
  beta: "KL coefficient (β)",
  lora: "LoRA",
  "lora.rank": "LoRA rank",
  n_epochs: "Epochs",
  batch_size: "Rows per step",
  max_tokens: "Max tokens per row",
  eval_interval: "Evaluate every",
  temperature: "Temperature",
  dynamic_sampling: "Replacement rounds",
  eval_temperature: "Evaluation temperature",
  eval_samples: "Evaluated rows",
  eval_grader: "Evaluation grader",
  lr_schedule: "Learning rate schedule",
  max_grad_norm: "Max gradient norm",
  mask_truncated_completions: "Mask truncated completions",
  num_iterations: "Updates per batch",
  hyperparameters: "Settings",
  reinforcement: "Method",
  supervised: "Method",
  training_free: "Method",
  training_file: "Training file",
  validation_file: "Held-out file",
  validation_split: "Held-out part",
  gpus: "GPUs",
};
const METRICS = {
  reward: "Reward",
  reward_std: "Reward standard deviation",
  frac_reward_zero_std: "Groups without signal",
  loss: "Loss",
  kl: "KL divergence to the reference",
  entropy: "Entropy",
  grad_norm: "Gradient norm",
  learning_rate: "Learning rate",
  beta: "β",
  step_time: "Seconds per step",
  pass_at_1: "Pass rate per completion",
  pass_at_group: "Pass rate per group",
  "clip_ratio/region_mean": "Clipped tokens",
  "completions/mean_length": "Completion length",
  "completions/clipped_ratio": "Truncated completions",
  "completions/reward_length_correlation": "Correlation of reward and length",
  "perf/sampled_tokens_per_second": "Sampled tokens/s",
  "perf/trained_tokens_per_second": "Trained tokens/s",
  "eval/reward": "Held-out reward",
  "eval/loss": "Held-out loss",
};
const OTHERS = new Set(`checkpoint_interval early_stopping entropy_coef epsilon_high epsilon_low grader_timeout_seconds
  importance_correction kl_horizon kl_placement kl_ratio_weight kl_target loss_type max_grader_error_rate max_skipped_steps
  max_staleness max_turns overlong_buffer_tokens overlong_penalty top_p warmup_steps weight_decay`.split(/\s+/));
const METHOD = /^(method\.\w+\.)?(hyperparameters\.)?/;

// "method.reinforcement.hyperparameters.beta" → "KL coefficient (β)"; "training_file[3].answer" →
// "Training file, row 3 › answer"
export function settingLabel(path) {
  const names = path.split(".");
  return SETTINGS[names.slice(-2).join(".")] ?? SETTINGS[names.at(-1)] ?? capital(path.replace(METHOD, "").split(".").map(spaced).join(" › "));
}

// "rewards/exact/mean" → "Reward of exact: mean"
export function metricLabel(name) {
  const [, eval_, part, measure] = /^(eval\/)?rewards\/(.+)\/(\w+)$/.exec(name) ?? [];
  if (part) return `${eval_ ? "Held-out reward" : "Reward"} of ${part}: ${spaced(measure)}`;
  return METRICS[name] ?? capital(name.replace(/^eval\//, "held-out ").split("/").map(spaced).join(": "));
}

// A value of a setting: a list or an object with its names in words.
export function settingValue(value) {
  if (Array.isArray(value)) return value.length ? value.map(settingValue).join("; ") : "none";
  if (typeof value !== "object" || value === null) return value === null ? "none" : String(value);
  return Object.entries(value).map(([name, inner]) => `${spaced(name)} ${settingValue(inner)}`).join(", ");
}

// A request or a patch → path → value, without those that are null.
export function leaves(value, path = "", found = new Map()) {
  if (value === null || value === undefined) return found;
  if (typeof value !== "object" || Array.isArray(value)) return found.set(path, value);
  for (const [name, inner] of Object.entries(value)) leaves(inner, path ? `${path}.${name}` : name, found);
  return found;
}

// A sentence of the service with labels in place of the names that it mentions: "Lower learning_rate." → "Lower learning rate."
export function inWords(text) {
  return String(text).replace(/`?(\b[a-z]\w*(?:[._/]\w+|\[\d+\])+)`?/g, (whole, name, at) => {
    const label = labelIn(name);
    return !label ? whole : /(^|[.!?] )$/.test(text.slice(0, at)) || /[A-Zβ]/.test(label[1]) ? label : label[0].toLowerCase() + label.slice(1);
  });
}

function labelIn(name) {
  if (name.includes("/")) return METRICS[name] ?? (/^(eval\/)?rewards\//.test(name) ? metricLabel(name) : null);
  const last = name.split(".").at(-1);
  const isKnown = /^method\.|_file\[/.test(name) || (last === name && (name in SETTINGS || name in METRICS || OTHERS.has(name)));
  return isKnown ? SETTINGS[name] ?? METRICS[name] ?? settingLabel(name) : null;
}

const spaced = (name) => name.replaceAll("_", " ").replace(/^(.* file)\[(\d+)\]/, "$1, row $2");
const capital = (text) => text[0].toUpperCase() + text.slice(1);
