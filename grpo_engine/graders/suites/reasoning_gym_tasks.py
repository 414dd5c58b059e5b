"""Makes Reasoning Gym's tasks and scores answers, where its package may be imported.

The text of this file is the grader's program in the sandbox, and the child process that generates rows
imports it. So it imports the standard library and Reasoning Gym only.
"""

from collections.abc import Mapping
from typing import Any

from reasoning_gym.coaching.base_curriculum import DefaultCurriculumContext, RangeAttributeMode
from reasoning_gym.factory import CURRICULA, DATASETS

COMPARES_TUPLES = ("arc_agi", "rearc")
"""Tasks whose scorers compare with tuples of the metadata, which are lists in a row's JSON."""
ONLY_THIS_LEVEL = DefaultCurriculumContext(RangeAttributeMode.UPPER_BOUND)


def make_task(
    task: str, config: Mapping[str, Any], level: int | None = None, *, seed: int = 0, size: int = 1
) -> Any:
    """The task's generator. `level`: level of its curriculum, from 0; None: the task's own defaults.

    Raises what the suite raises for a wrong configuration.
    """
    dataset, config_class = DATASETS[task]
    options = {**config, "seed": seed, "size": size}
    if level is None:
        return dataset(config_class(**options))
    curriculum = CURRICULA[task]()
    curriculum.set_global_level(level)
    return dataset(curriculum.generate_configuration(options, ONLY_THIS_LEVEL))


def score(made: Any, answer: Any, item: Mapping[str, Any]) -> float:
    """The task's score of an answer to the row. Raises what the task's scorer raises."""
    of = item["reasoning_gym"]
    metadata = _tuples(of["metadata"]) if of["task"] in COMPARES_TUPLES else of["metadata"]
    return float(made.score_answer(answer, {"answer": item["answer"], "metadata": metadata}))


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _tuples(each) for name, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def grade(sample: Mapping[str, Any], item: Mapping[str, Any]) -> Any:
    """The score of `sample["output_text"]`; an answer that the scorer fails on is wrong."""
    of = item["reasoning_gym"]
    made = make_task(of["task"], of["config"], item.get("level"))
    try:
        return score(made, sample["output_text"], item)
    except Exception as error:  # noqa: BLE001 - whatever the answer makes the scorer raise
        reason = f"the task's scorer failed on this answer: {type(error).__name__}: {error}"
        return {"score": 0.0, "feedback": reason[:500]}
