"""TRL's reward functions and their weights → a grader and an advantage.

Boundary: `rewards.py` translates single functions.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from service.importing import rewards as functions
from service.importing.rules import Refusal, Translation, together

ADVANTAGES = {
    "group": "group_std",
    "batch": "batch_std",
    "none": "mean_only",
    True: "group_std",
    False: "mean_only",
}
UNSCORED = "if one part returns no number, the completion is left out; TRL sums the others"


@dataclass
class _Rewards:
    graders: dict[str, Any] = field(default_factory=dict)
    terms: list[str] = field(default_factory=list)
    """Terms of the formula, one per function, in TRL's order."""
    notes: list[str] = field(default_factory=list)


@together(
    {
        "reward_funcs": None,
        "reward_model_name_or_path": None,
        "reward_weights": None,
        "multi_objective_aggregation": "sum_then_normalize",
        "scale_rewards": "group",
    }
)
def rewards(translation: Translation) -> None:
    found = _collected(translation)
    weights = translation["reward_weights"] or [1.0] * len(found.terms)
    if not found.terms:
        if not any(line.verdict == "refused" and "reward_funcs" in line.fields for line in translation.lines):
            why = "no reward: give the training script's own with --reward file.py:function"
            translation.refuses("reward_funcs", why)
        return
    if len(weights) != len(found.terms):
        why = f"{len(weights)} weights for {len(found.terms)} reward functions"
        translation.refuses("reward_weights", why)
        return
    if len(found.graders) > 1:
        found.notes.append(UNSCORED)
    translation.maps(
        ("reward_funcs", "reward_model_name_or_path", "reward_weights"),
        "grader",
        _combined(translation, found, [float(weight) for weight in weights]),
        differs="; ".join(found.notes),
    )


def _collected(translation: Translation) -> _Rewards:
    found = _Rewards()
    if reward_model := translation["reward_model_name_or_path"]:
        key = functions.key_of(str(reward_model).rpartition("/")[2], found.graders)
        found.graders[key] = {"type": "reward_model", "model": str(reward_model)}
        found.terms.append(key)
        found.notes.append(f"{reward_model} must be in the catalogue, with one label")
    given = translation["reward_funcs"]
    names = [given] if isinstance(given, str) else list(given or [])
    for name in [*names, *translation.options.rewards]:
        try:
            reward = functions.grader_of(str(name), translation.options.sources)
        except Refusal as refusal:
            translation.refuses("reward_funcs", f"{name}: {refusal}")
            continue
        key = functions.key_of(re.split(r"[.:]", str(name).partition("(")[0])[-1], found.graders)
        found.graders |= {f"{key}{suffix}": grader for suffix, grader in reward.graders.items()}
        found.terms.append(reward.formula.format(key=key))
        found.notes += [f"{key}: {reward.note}"] if reward.note else []
    return found


def _combined(translation: Translation, found: _Rewards, weights: list[float]) -> dict[str, Any]:
    """The job's grader; sets the advantage beside it."""
    names = ("multi_objective_aggregation", "scale_rewards")
    aggregation, scale = (translation[name] for name in names)
    grader = {"type": "multi", "graders": found.graders}
    if aggregation == "normalize_then_sum":
        if len(found.terms) < len(found.graders):
            why = "think_format_reward becomes two graders here, which cannot be normalised as one"
            translation.refuses(names[0], why)
        translation.maps(names, "advantage", "gdpo")
        by_key = dict(zip(found.graders, weights, strict=False))
        return {**grader, "aggregation": "gdpo", "weights": by_key}
    if aggregation != "sum_then_normalize":
        translation.refuses(names[0], "must be sum_then_normalize or normalize_then_sum")
    if scale not in ADVANTAGES:
        translation.refuses("scale_rewards", "must be group, batch or none")
    translation.maps("scale_rewards", "advantage", ADVANTAGES.get(scale, "group_std"))
    translation.leaves("multi_objective_aggregation", "rewards are summed first, as here")
    if found.terms == list(found.graders) and weights == [1.0]:
        return {"name": found.terms[0], **found.graders[found.terms[0]]}
    pairs = zip(found.terms, weights, strict=True)
    terms = [term if weight == 1 else f"{weight:g} * {term}" for term, weight in pairs]
    return {**grader, "calculate_output": " + ".join(terms)}
