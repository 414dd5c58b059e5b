"""Fields of TRL that have a meaning only together: batches, steps, loss, adapter, evaluation.

Boundary: each function takes a translation and writes to it; rewards are in `trl_rewards.py`.
"""

from __future__ import annotations

import math
from fractions import Fraction

from service.importing.rules import Translation, whole

BATCH = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "generation_batch_size",
    "steps_per_generation",
    "num_generations",
)
LOSSES = ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo")
OPENED = "a whole step is one batch here, and that is what its tokens are counted over"
SHARE = "a share of the steps, whose number the dataset says: give --data, max_steps or whole steps"
IS_MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def batch(translation: Translation) -> None:
    """Completions of an optimiser step ÷ completions of a prompt = prompts of a step."""
    group_size = whole(translation["num_generations"])
    translation.maps("num_generations", "group_size", group_size)
    per_step = translation["per_device_train_batch_size"] * translation["gradient_accumulation_steps"]
    per_step *= translation.options.num_processes
    prompts, rest = divmod(whole(per_step), group_size)
    names = tuple(name for name in BATCH if name != "num_generations")
    if rest or not prompts:
        message = f"{per_step} completions of a step are not whole groups of {group_size}"
        translation.refuses(names, f"{message}: change the batch size, or give --num-processes")
        return
    translation.maps(names, "prompts_per_step", prompts, differs=_reuse(translation, per_step))


def _reuse(translation: Translation, per_step: int) -> str:
    """The difference if a generation feeds several optimiser steps."""
    batches = minibatches(translation)
    if batches == 1:
        return ""
    return (
        f"TRL draws {per_step * batches} completions and trains on them in {batches} steps, the later ones "
        "off-policy; here every step draws its own"
    )


def minibatches(translation: Translation) -> Fraction | int:
    """Optimiser steps over the completions of one generation, num_iterations apart."""
    accumulated = translation["gradient_accumulation_steps"]
    if translation["generation_batch_size"] is not None:
        per_pass = translation["per_device_train_batch_size"] * translation.options.num_processes
        return Fraction(translation["generation_batch_size"], per_pass * accumulated)
    return Fraction(translation["steps_per_generation"] or accumulated, accumulated)


def length(translation: Translation) -> None:
    """TRL counts each optimiser step; a step here is one set of completions, num_iterations times."""
    iterations = whole(translation["num_iterations"])
    translation.maps("num_iterations", "num_iterations", iterations)
    steps, epochs = translation["max_steps"], translation["num_train_epochs"]
    counted = f"TRL counts {iterations} optimiser steps per step with num_iterations here"
    why = counted if iterations > 1 else ""
    if steps and steps > 0:
        translation.maps("max_steps", "n_steps", max(1, math.ceil(steps / iterations)), differs=why)
        translation.leaves("num_train_epochs", "max_steps takes its place")
    elif epochs == int(epochs) and 1 <= epochs <= 50:
        translation.maps("num_train_epochs", "n_epochs", int(epochs))
    else:
        translation.refuses("num_train_epochs", "whole epochs from 1 to 50 only: give max_steps in its place")
    _warmup(translation, iterations, why)


def _warmup(translation: Translation, iterations: int, why: str) -> None:
    name = (
        "warmup_ratio" if translation["warmup_ratio"] and not translation["warmup_steps"] else "warmup_steps"
    )
    warmup, steps = translation[name], total_steps(translation)
    if warmup >= 1 or warmup == 0:
        translation.maps(name, "warmup_steps", math.ceil(int(warmup) / iterations), differs=why)
    elif steps is not None:
        translation.maps(name, "warmup_steps", math.ceil(steps * warmup))
    else:
        translation.refuses(name, SHARE)


def total_steps(translation: Translation) -> int | None:
    """Of the job, if it is known by now."""
    targets, num_rows = translation.targets, translation.options.num_rows
    if "n_steps" in targets or num_rows is None or not {"n_epochs", "prompts_per_step"} <= targets.keys():
        return targets.get("n_steps")
    return math.ceil(targets["n_epochs"] * num_rows / targets["prompts_per_step"])


def loss(translation: Translation) -> None:
    """The loss with its clip range; GSPO is TRL's loss `grpo` with the ratio of the sequence."""
    names = ("loss_type", "importance_sampling_level")
    kind, level = translation["loss_type"], translation["importance_sampling_level"]
    if level == "sequence" and kind == "grpo":
        translation.maps(names, "loss_type", "gspo")
    elif level == "sequence":
        message = f"the ratio of the sequence exists with the loss grpo (GSPO), not with {kind}"
        translation.refuses(names, f"{message}: set loss_type: grpo")
    elif kind in LOSSES:
        translation.maps(names, "loss_type", kind, differs=OPENED if kind == "bnpo" else "")
    else:
        translation.refuses("loss_type", f"must be one of {', '.join(LOSSES)}, and gspo by its level")
    low = translation["epsilon"]
    high = translation["epsilon_high"]
    translation.maps("epsilon", "epsilon_low", float(low))
    translation.maps("epsilon_high", "epsilon_high", float(low if high is None else high))
    if translation["delta"] is not None:
        translation.maps("delta", "delta", float(translation["delta"]))


def divergence(translation: Translation) -> None:
    """β; with one, TRL trains groups without signal too, for their KL term."""
    beta = float(translation["beta"])
    translation.maps("beta", "beta", beta)
    if beta == 0:
        translation.leaves("use_bias_correction_kl", "beta is 0: there is no KL term")
        return
    weighted = bool(translation["use_bias_correction_kl"])
    translation.maps("use_bias_correction_kl", "kl_ratio_weight", weighted)
    translation.maps("beta", "train_groups_without_signal", True)


def gate(translation: Translation) -> None:
    for theirs, ours in (("pos", "positive"), ("neg", "negative")):
        name = f"sapo_temperature_{theirs}"
        if translation["loss_type"] == "sapo":
            translation.maps(name, f"sapo_temperature_{ours}", float(translation[name]))
        else:
            translation.leaves(name, "only used by the loss sapo")


def correction(translation: Translation) -> None:
    """Where another program samples, its probabilities are corrected for."""
    prefix = "vllm_importance_sampling_"
    bounds = (f"{prefix}clip_max", f"{prefix}cap", f"{prefix}clip_min")
    mode, low = translation[f"{prefix}mode"], translation[f"{prefix}clip_min"]
    if not translation["use_vllm"]:
        why = "`auto` here: corrected if the operator's sampler is not the trainer itself"
        translation.leaves(("use_vllm", f"{prefix}correction", f"{prefix}mode", *bounds), why)
        return
    translation.leaves("use_vllm", "the operator chooses the sampler: vLLM on a GPU, if it is installed")
    if not translation[f"{prefix}correction"]:
        translation.maps(f"{prefix}correction", "importance_correction", "none")
        translation.leaves((f"{prefix}mode", *bounds), "nothing is corrected")
    elif mode not in IS_MODES or low is not None:
        message = f"{', '.join(IS_MODES)} with an upper bound only; remove {prefix}clip_min"
        translation.refuses((f"{prefix}mode", f"{prefix}clip_min"), message)
    else:
        translation.maps((f"{prefix}correction", f"{prefix}mode"), "importance_correction", mode)
        cap = translation[f"{prefix}cap"] or translation[f"{prefix}clip_max"]
        translation.maps(bounds[:2], "importance_cap", float(cap))


def adapter(translation: Translation) -> None:
    """Without use_peft TRL trains all weights."""
    shape = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules")
    if not translation["use_peft"]:
        translation.maps("use_peft", "lora", "full")
        translation.leaves(shape, "use_peft is false: all weights are trained")
        return
    translation.leaves("use_peft", "an adapter is trained: lora")
    translation.maps("lora_r", "lora.rank", whole(translation["lora_r"]))
    translation.maps("lora_alpha", "lora.alpha", float(translation["lora_alpha"]))
    translation.maps("lora_dropout", "lora.dropout", float(translation["lora_dropout"]))
    targets = translation["lora_target_modules"]
    targets = [targets] if isinstance(targets, str) and targets != "all-linear" else targets
    why = (
        "PEFT's choice for Llama, Qwen, Mistral and Gemma; other families have others" if not targets else ""
    )
    translation.maps(
        "lora_target_modules", "lora.target_modules", targets or ["q_proj", "v_proj"], differs=why
    )


def model(translation: Translation) -> None:
    """A job names an entry of the catalogue."""
    name, revision = translation["model_name_or_path"], translation["model_revision"]
    chosen = translation.options.model or name
    if not chosen:
        translation.refuses("model_name_or_path", "no model: give --model, a name of `GET /v1/models`")
        return
    is_path = str(chosen).startswith(("/", ".", "~"))
    if is_path and not translation.options.model:
        translation.refuses(
            "model_name_or_path", "a job names no path: `grpo models add NAME PATH`, then --model NAME"
        )
        return
    same = "" if chosen == name else "by --model"
    translation.maps("model_name_or_path", "model", str(chosen), differs=same)
    if revision in (None, "main"):
        translation.leaves("model_revision", "the catalogue's entry says it")
    else:
        translation.differs(
            "model_revision", f"the catalogue's entry says it: `grpo models add … @{revision}`"
        )


def data(translation: Translation) -> None:
    """A job's rows are uploaded files."""
    names = ("dataset_name", "dataset_config", "dataset_train_split", "datasets")
    path = translation.options.data
    named = translation["dataset_name"]
    if path is None and isinstance(named, str) and named.endswith((".jsonl", ".parquet")):
        path = named
    if path is None:
        message = "give --data: a JSONL, Parquet, CSV or JSON file, or hf://owner/name"
        translation.refuses(names, message)
    else:
        translation.maps(names, "training_file", path, differs="" if path == named else "by --data")
    if translation.options.validation_data:
        translation.maps(
            "dataset_test_split",
            "validation_file",
            translation.options.validation_data,
            differs="by --validation-data",
        )
    else:
        translation.leaves("dataset_test_split", "no held-out rows: --validation-data gives some")


def run_name(translation: Translation) -> None:
    if translation["run_name"]:
        translation.maps("run_name", "metadata.run_name", str(translation["run_name"])[:512])


def evaluation(translation: Translation) -> None:
    """Held-out rows are evaluated if the job has any."""
    names = ("eval_strategy", "eval_steps")
    strategy, steps = str(translation["eval_strategy"]), translation["eval_steps"]
    translation.leaves("do_eval", "held-out rows are evaluated if the job has any")
    if strategy == "no":
        translation.leaves(names, "held-out rows are evaluated if the job has any")
    elif translation.options.validation_data is None:
        translation.differs(names, "nothing is evaluated without held-out rows: give --validation-data")
    elif strategy == "steps" and steps and steps >= 1:
        iterations = whole(translation["num_iterations"])
        translation.maps(names, "eval_interval", max(1, int(steps) // iterations))
    else:
        translation.differs(names, "ten evaluations over the job; eval_interval says otherwise")


def saving(translation: Translation) -> None:
    """A killed job continues from its checkpoints."""
    every, limit = translation["save_steps"], translation["save_total_limit"]
    if translation.states("save_steps") and every >= 1:
        translation.maps("save_steps", "checkpoint_interval", int(every))
    else:
        translation.leaves("save_steps", "every 20 steps: a killed job continues from there")
    if limit:
        translation.maps("save_total_limit", "max_checkpoints", min(100, whole(limit)))
    if translation["save_strategy"] == "steps":
        translation.leaves("save_strategy", "the same here")
    else:
        translation.differs(
            "save_strategy", "checkpoints are counted in steps: a killed job continues from the last"
        )
