// The settings of a request: their labels in the form, by the last names of their paths.

const LABELS = {
  group_size: "Completions per prompt",
  prompts_per_step: "Prompts per step",
  n_steps: "Steps",
  max_completion_tokens: "Max completion tokens",
  learning_rate: "Learning rate",
  beta: "KL coefficient (β)",
  "lora.rank": "LoRA rank",
  n_epochs: "Epochs",
  batch_size: "Rows per step",
  max_tokens: "Max tokens per row",
  eval_interval: "Evaluate every",
  temperature: "Temperature",
  dynamic_sampling: "Replacement rounds",
  eval_temperature: "Evaluation temperature",
  recipe: "Recipe",
  grader: "Grader",
  hyperparameters: "Settings",
  reinforcement: "Method",
  supervised: "Method",
  training_free: "Method",
  training_file: "Training file",
  validation_file: "Held-out file",
  validation_split: "Held-out part",
};

// "method.reinforcement.hyperparameters.beta" → "KL coefficient (β)"; without a label the end of the path remains.
export function settingLabel(path) {
  const names = path.split(".");
  const label = LABELS[names.slice(-2).join(".")] ?? LABELS[names.at(-1)];
  return label ?? path.replace(/^(method\.\w+\.)?(hyperparameters\.)?/, "");
}
