"""verl's reward function, its punishment of long completions and its filter of groups.

Boundary: rules for `verl.py`; `rewards.py` translates Python functions.
"""

from __future__ import annotations

from typing import Any

from service.importing.rewards import wrapped_verl
from service.importing.rules import Refusal, Rule, Translation, whole

ALGORITHM = "algorithm"


def _reward(translation: Translation) -> None:
    path, name = "custom_reward_function.path", "custom_reward_function.name"
    names = list(translation.options.rewards)
    if translation[path]:
        names.insert(0, f"{translation[path]}:{translation[name]}")
    if len(names) != 1:
        why = "verl's own rewards go by data_source: give one function by --reward file.py:compute_score"
        translation.refuses(path, why)
        return
    try:
        source, note = wrapped_verl(translation.options.sources.get(names[0]), names[0])
    except Refusal as refusal:
        translation.refuses((path, name), f"{names[0]}: {refusal}")
        return
    grader: dict[str, Any] = {"type": "python", "name": names[0].rpartition(":")[2], "source": source}
    translation.maps((path, name), "grader", grader, differs=note)


def _overlong(translation: Translation) -> None:
    enable, buffer, factor = (
        f"reward_model.overlong_buffer.{end}" for end in ("enable", "len", "penalty_factor")
    )
    if translation[enable]:
        translation.maps((enable, buffer), "overlong_buffer_tokens", whole(translation[buffer]))
        translation.maps(factor, "overlong_penalty", float(translation[factor]))
    else:
        translation.leaves((enable, buffer, factor), "no punishment of long completions")
    if translation["reward_model.enable"]:
        why = (
            "a reward model is a grader: --reward takes functions; write a `reward_model` grader into the job"
        )
        translation.refuses("reward_model.enable", why)
    else:
        translation.leaves(
            ("reward_model.enable", "reward_model.reward_manager"), "rewards come from the grader"
        )


def _filter(translation: Translation) -> None:
    enable, most, metric = (
        f"{ALGORITHM}.filter_groups.{end}" for end in ("enable", "max_num_gen_batches", "metric")
    )
    if translation[enable]:
        rounds = min(20, whole(translation[most] or 0) or 20)
        translation.maps((enable, most), "dynamic_sampling", rounds)
        translation.leaves(metric, "groups of equal rewards are replaced")
    else:
        translation.leaves((enable, most, metric), "groups without signal are left out, not replaced")


REWARD = Rule({"custom_reward_function.path": None, "custom_reward_function.name": "compute_score"}, _reward)
OVERLONG = Rule(
    {
        "reward_model.overlong_buffer.enable": False,
        "reward_model.overlong_buffer.len": 0,
        "reward_model.overlong_buffer.penalty_factor": 1.0,
        "reward_model.enable": False,
        "reward_model.reward_manager": "naive",
    },
    _overlong,
)
FILTER = Rule(
    {
        f"{ALGORITHM}.filter_groups.enable": False,
        f"{ALGORITHM}.filter_groups.max_num_gen_batches": 0,
        f"{ALGORITHM}.filter_groups.metric": None,
    },
    _filter,
)
