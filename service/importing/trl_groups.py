"""Rules for fields of TRL that have a meaning only together: batches, steps, loss, adapter, evaluation.

Rewards are in `trl_rewards.py`.
"""

import math
from fractions import Fraction

from service.importing import common_fields
from service.importing.rules import Translation, together, whole

LOSSES = ("grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo")
WHOLE_STEP = "its tokens are counted over the whole step, which is one batch here"
FILES = (".jsonl", ".json", ".csv", ".parquet")
"""Endings of the files that `grpo submit` uploads."""
SHARE = "a share of the steps, whose number depends on the dataset: give --data, max_steps or whole steps"
IS_MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
IF_ANY = "held-out rows are evaluated if the job has any"


@together(
    {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "generation_batch_size": None,
        "steps_per_generation": None,
        "num_generations": 8,
    }
)
def batch(translation: Translation) -> None:
    """Completions of an optimiser step ÷ completions of a prompt = prompts of a step."""
    group_size = whole(translation["num_generations"])
    translation.maps("num_generations", "group_size", group_size)
    per_step = translation["per_device_train_batch_size"] * translation["gradient_accumulation_steps"]
    per_step *= translation.options.num_processes
    prompts, rest = divmod(whole(per_step), group_size)
    names = tuple(name for name in batch.defaults if name != "num_generations")
    if rest or not prompts:
        message = f"{per_step} completions of a step are not whole groups of {group_size}"
        translation.refuses(names, f"{message}: change the batch size, or give --num-processes")
        return
    batches = _minibatches(translation)
    reuse = (
        f"TRL draws {per_step * batches} completions and trains on them in {batches} steps, the later ones "
        "off-policy; here every step draws its own"
    )
    translation.maps(names, "prompts_per_step", prompts, differs=reuse if batches != 1 else "")


def _minibatches(translation: Translation) -> Fraction | int:
    """Optimiser steps for the completions of one generation, not counting num_iterations."""
    accumulated = translation["gradient_accumulation_steps"]
    if translation["generation_batch_size"] is not None:
        per_pass = translation["per_device_train_batch_size"] * translation.options.num_processes
        return Fraction(translation["generation_batch_size"], per_pass * accumulated)
    return Fraction(translation["steps_per_generation"] or accumulated, accumulated)


@together(
    {
        "max_steps": -1,
        "num_train_epochs": 3.0,
        "num_iterations": 1,
        "warmup_steps": 0,
        "warmup_ratio": None,  # before release 1; now a fraction in warmup_steps
    }
)
def length(translation: Translation) -> None:
    """Steps and epochs. TRL counts optimiser steps; a step here makes num_iterations of them."""
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
        translation.refuses("num_train_epochs", "whole epochs from 1 to 50 only: give max_steps instead")
    _warmup(translation, iterations, why)


def _warmup(translation: Translation, iterations: int, why: str) -> None:
    is_ratio = translation["warmup_ratio"] and not translation["warmup_steps"]
    name = "warmup_ratio" if is_ratio else "warmup_steps"
    warmup, steps = translation[name], total_steps(translation)
    if warmup >= 1 or warmup == 0:
        translation.maps(name, "warmup_steps", math.ceil(int(warmup) / iterations), differs=why)
    elif steps is not None:
        translation.maps(name, "warmup_steps", math.ceil(steps * warmup))
    else:
        translation.refuses(name, SHARE)


def total_steps(translation: Translation) -> int | None:
    """The job's number of steps, or None if it is unknown."""
    targets, num_rows = translation.targets, translation.options.num_rows
    if "n_steps" in targets or num_rows is None or not {"n_epochs", "prompts_per_step"} <= targets.keys():
        return targets.get("n_steps")
    return math.ceil(targets["n_epochs"] * num_rows / targets["prompts_per_step"])


@together(
    {
        "loss_type": "dapo",
        "importance_sampling_level": "token",
        "epsilon": 0.2,
        "epsilon_high": None,
        "delta": None,
    }
)
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
        translation.maps(names, "loss_type", kind, differs=WHOLE_STEP if kind == "bnpo" else "")
    else:
        translation.refuses("loss_type", f"must be one of {', '.join(LOSSES)}, and gspo by its level")
    low, high = translation["epsilon"], translation["epsilon_high"]
    translation.maps("epsilon", "epsilon_low", float(low))
    translation.maps("epsilon_high", "epsilon_high", float(low if high is None else high))
    if translation["delta"] is not None:
        translation.maps("delta", "delta", float(translation["delta"]))


@together({"beta": 0.0, "use_bias_correction_kl": True})
def divergence(translation: Translation) -> None:
    """β; if it is not 0, TRL trains groups without signal too, for their KL term."""
    beta = float(translation["beta"])
    translation.maps("beta", "beta", beta)
    if beta == 0:
        translation.leaves("use_bias_correction_kl", "beta is 0: there is no KL term")
        return
    weighted = bool(translation["use_bias_correction_kl"])
    translation.maps("use_bias_correction_kl", "kl_ratio_weight", weighted)
    translation.maps("beta", "train_groups_without_signal", True)


@together({"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05})
def gate(translation: Translation) -> None:
    for sign in ("positive", "negative"):
        name = f"sapo_temperature_{sign[:3]}"
        if translation["loss_type"] == "sapo":
            translation.maps(name, f"sapo_temperature_{sign}", float(translation[name]))
        else:
            translation.leaves(name, "only used by the loss sapo")


@together(
    {
        "use_vllm": False,
        "vllm_importance_sampling_correction": True,
        "vllm_importance_sampling_mode": "sequence_mask",
        "vllm_importance_sampling_clip_max": 3.0,
        "vllm_importance_sampling_clip_min": None,
        "vllm_importance_sampling_cap": None,
    }
)
def correction(translation: Translation) -> None:
    """Corrects for the difference between the sampler's and the trainer's probabilities."""
    prefix = "vllm_importance_sampling_"
    bounds = (f"{prefix}clip_max", f"{prefix}cap", f"{prefix}clip_min")
    mode, low = translation[f"{prefix}mode"], translation[f"{prefix}clip_min"]
    if not translation["use_vllm"]:
        why = "`auto` here: corrected if the sampler is another program or computes in bfloat16"
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


@together(
    {"use_peft": False, "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05, "lora_target_modules": None}
)
def adapter(translation: Translation) -> None:
    """TRL trains all weights unless use_peft is set."""
    if not translation["use_peft"]:
        translation.maps("use_peft", "lora", "full")
        translation.leaves(tuple(adapter.defaults)[1:], "use_peft is false: all weights are trained")
        return
    translation.leaves("use_peft", "an adapter is trained: lora")
    translation.maps("lora_r", "lora.rank", whole(translation["lora_r"]))
    translation.maps("lora_alpha", "lora.alpha", float(translation["lora_alpha"]))
    translation.maps("lora_dropout", "lora.dropout", float(translation["lora_dropout"]))
    name, targets, why = "lora_target_modules", translation["lora_target_modules"], ""
    if not targets:
        targets, why = ["q_proj", "v_proj"], "PEFT's choice for Llama, Qwen, Mistral and Gemma only"
    elif targets == ["all-linear"]:
        targets = "all-linear"  # TRL unpacks a list of one
    elif isinstance(targets, str) and targets != "all-linear":
        targets = [targets]
    translation.maps(name, "lora.target_modules", targets, differs=why)


@together(
    {
        "load_in_4bit": False,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": "nf4",
        "use_bnb_nested_quant": False,
    }
)
def quantization(translation: Translation) -> None:
    """Bits of the frozen base; an adapter is trained on it."""
    four, eight, kind, nested = quantization.defaults
    name = four if translation[four] else eight
    if not translation[name]:
        translation.leaves(tuple(quantization.defaults), "the base is not quantised")
        return
    if not translation["use_peft"]:
        translation.refuses(name, "quantised weights cannot be trained: set use_peft to true for an adapter")
    elif name == eight:
        translation.maps(eight, "quantization", "int8")
        translation.leaves((four, kind, nested), "only used by load_in_4bit")
    elif translation[kind] != "nf4":
        translation.refuses(
            kind, f"must be nf4, whose error is smaller at the same size, not {translation[kind]}"
        )
    else:
        why = "" if translation[nested] else "the scales are quantised, too, as by use_bnb_nested_quant"
        translation.maps((four, kind, nested), "quantization", "nf4", differs=why)
        translation.leaves(eight, "load_in_4bit takes its place")


@together({"model_name_or_path": None, "model_revision": "main"})
def model(translation: Translation) -> None:
    common_fields.model(translation, "model_name_or_path")
    revision, why = translation["model_revision"], "set by the catalogue's entry"
    if revision in (None, "main"):
        translation.leaves("model_revision", why)
    else:
        translation.differs("model_revision", f"{why}: `grpo models add … @{revision}`")


@together(
    {
        "dataset_name": None,
        "dataset_config": None,
        "dataset_train_split": "train",
        "dataset_test_split": "test",
        "datasets": None,
    }
)
def data(translation: Translation) -> None:
    names = ("dataset_name", "dataset_config", "dataset_train_split", "datasets")
    named = translation["dataset_name"]
    is_file = isinstance(named, str) and named.endswith(FILES)
    upload = ""
    if isinstance(named, str) and not is_file:
        place = "/".join(part for part in (named, translation["dataset_config"]) if part)
        upload = f"hf://{place} --split {translation['dataset_train_split']}"
    common_fields.datasets(
        translation, names, "dataset_test_split", named if is_file else None, upload=upload
    )


@together({"eval_strategy": "no", "eval_steps": None, "do_eval": False})
def evaluation(translation: Translation) -> None:
    names = ("eval_strategy", "eval_steps")
    strategy, steps = str(translation["eval_strategy"]), translation["eval_steps"]
    translation.leaves("do_eval", IF_ANY)
    if strategy == "no":
        translation.leaves(names, IF_ANY)
    elif translation.options.validation_data is None:
        translation.differs(names, "nothing is evaluated without held-out rows: give --validation-data")
    elif strategy == "steps" and steps and steps >= 1:
        iterations = whole(translation["num_iterations"])
        translation.maps(names, "eval_interval", max(1, int(steps) // iterations))
    else:
        translation.differs(names, "ten evaluations over the job, unless eval_interval is set")


@together({"save_strategy": "steps", "save_steps": 500, "save_total_limit": None})
def saving(translation: Translation) -> None:
    steps = Fraction(1, whole(translation["num_iterations"]))
    common_fields.checkpoints(translation, "save_steps", "save_total_limit", steps=steps)
    if translation["save_strategy"] == "steps":
        translation.leaves("save_strategy", "the same here")
    else:
        why = "checkpoints are counted in steps: a killed job continues from the last"
        translation.differs("save_strategy", why)
