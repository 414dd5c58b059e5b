"""Expands other systems' names, recipes and multipliers into one canonical, visible configuration.

Functions from dict to dict, run before validation. Expanding twice changes nothing. Two fields with the same
meaning must agree, so that no option is silently ignored.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import PydanticCustomError

ALIASES = {
    "num_generations": "group_size",
    "samples_per_prompt": "group_size",
    "num_generations_per_prompt": "group_size",
    "kl_beta": "beta",
    "max_completion_length": "max_completion_tokens",
    "max_tokens_per_completion": "max_completion_tokens",
    "num_prompts_per_step": "prompts_per_step",
    "max_steps": "n_steps",
    "num_train_epochs": "n_epochs",
    "lr": "learning_rate",
    "epsilon": "epsilon_low",
}
"""Other names → our names. A job with `epsilon` and without `epsilon_high` uses `epsilon` for both bounds."""

RECIPES: Mapping[str, Mapping[str, Any]] = {
    # DeepSeekMath, arXiv 2402.03300
    "grpo": {"loss_type": "grpo", "advantage": "group_std", "beta": 0.04},
    # Understanding R1-Zero-Like Training, arXiv 2503.20783
    "dr_grpo": {"loss_type": "dr_grpo", "advantage": "mean_only", "beta": 0.0},
    # DAPO, arXiv 2503.14476: token-level loss, clip-higher, dynamic sampling, overlong filtering, no KL
    "dapo": {
        "loss_type": "dapo",
        "advantage": "group_std",
        "beta": 0.0,
        "epsilon_high": 0.28,
        "dynamic_sampling": 3,
        "mask_truncated_completions": True,
    },
    # Group Sequence Policy Optimization, arXiv 2507.18071
    "gspo": {"loss_type": "gspo", "advantage": "group_std", "beta": 0.0},
    # MiniMax-M1, arXiv 2506.13585
    "cispo": {"loss_type": "cispo", "advantage": "group_std", "beta": 0.0},
    # Soft Adaptive Policy Optimization, arXiv 2511.20347
    "sapo": {"loss_type": "sapo", "advantage": "group_std", "beta": 0.0},
    # Back to Basics, arXiv 2402.14740: no clip, the KL in the reward
    "rloo": {
        "loss_type": "reinforce",
        "advantage": "leave_one_out",
        "beta": 0.04,
        "kl_estimator": "k1",
        "kl_placement": "reward",
    },
    # REINFORCE++ with the group's baseline, arXiv 2501.03262: normalised over the batch, k2 in the loss
    "reinforce_plus_plus": {
        "loss_type": "dapo",
        "advantage": "reinforce_plus_plus",
        "beta": 0.01,
        "kl_estimator": "k2",
    },
}

CLIPS: Mapping[str, Mapping[str, float]] = {
    # the sequence ratio is a mean over tokens and varies far less than a token's
    "gspo": {"epsilon_low": 3e-4, "epsilon_high": 4e-4},
    # the bound itself, not 1 + ε
    "cispo": {"epsilon_high": 5.0},
}
"""Clip ranges of the losses for which 0.2 is unsuitable."""


def problem_at(message: str, *place: str | int) -> PydanticCustomError:
    """A ValueError that names its field; `place`: the path to it from the validated object."""
    return PydanticCustomError("field_problem", "{message}", {"message": message, "place": place})


def rename_aliases(data: dict[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Aliases → our names. Raises ValueError if an alias and our name disagree."""
    data = dict(data)
    if "epsilon" in data and data.get("epsilon_high") is None:
        data["epsilon_high"] = data["epsilon"]
    for alias, name in aliases.items():
        if alias in data:
            value = data.pop(alias)
            if data.setdefault(name, value) != value:
                raise problem_at(f"{alias} is another name of {name}: give one of them", alias)
    _nest_lora(data)
    return data


def _nest_lora(data: dict[str, Any]) -> None:
    flat = {"lora_r": "rank", "lora_rank": "rank", "lora_alpha": "alpha", "lora_dropout": "dropout"}
    found = {flat[key]: data.pop(key) for key in list(data) if key in flat}
    if not found:
        return
    given = data.get("lora")
    is_shape = given is None or isinstance(given, dict)
    if not is_shape or any((given or {}).get(name, value) != value for name, value in found.items()):
        raise problem_at("lora_… fields contradict lora: give one of them", "lora")
    data["lora"] = {**(given or {}), **found}


def expand_recipe(data: dict[str, Any]) -> dict[str, Any]:
    """Add the fields that the job does not set: those of the recipe and the clip range of the loss."""
    # a loss set by the job brings its own clip range, which overrides the recipe's
    data = _with_defaults(data, CLIPS, data.get("loss_type"))
    data = _with_defaults(data, RECIPES, data.get("recipe", "grpo"))
    return _with_defaults(data, CLIPS, data.get("loss_type"))


def _with_defaults(data: dict[str, Any], table: Mapping[str, Mapping[str, Any]], name: Any) -> dict[str, Any]:
    return {**table[name], **data} if isinstance(name, str) and name in table else data


def expand_multiplied(
    data: dict[str, Any], target: str, source: str, value_of: Callable[[Any], Any]
) -> dict[str, Any]:
    """Set `target` from `source` if only `source` is given. Raises ValueError if they disagree."""
    given = data.get(source, "auto")
    if isinstance(given, bool) or not isinstance(given, int | float):
        return data
    try:
        value = value_of(given) if math.isfinite(given) else None
    except OverflowError:  # a number beyond float
        value = None
    if value is None:  # the range of `source` refuses it
        return data
    if data.get(target, value) != value:
        raise problem_at(f"{target} and {source} contradict each other: give one of them", source)
    return {**data, target: value}


def expand_learning_rate(data: dict[str, Any], *, default: float) -> dict[str, Any]:
    """Set a missing (or "auto") learning rate to the default times the multiplier."""
    if data.get("learning_rate", "auto") == "auto":
        data = {key: value for key, value in data.items() if key != "learning_rate"}
        if data.get("learning_rate_multiplier", "auto") == "auto":
            return {**data, "learning_rate": default}
    return expand_multiplied(data, "learning_rate", "learning_rate_multiplier", lambda m: default * m)
