"""A job that has sampled: groups of completions as the engine records them, with the file of their rows."""

from typing import Any

from service.jobs.model.states import JobState
from service.platform.db import Database
from service.platform.tables.core import Rollout
from service.settings import Settings
from tests.service.job_samples import METHOD, add_job, jsonl, reinforcement, row, store_file

MULTI = {
    "type": "multi",
    "graders": {
        "accuracy": {"type": "numeric", "name": "accuracy", "reference": "{{item.answer}}"},
        "format": {"type": "format", "name": "format", "tags": ["answer"]},
    },
    "calculate_output": "0.8 * accuracy + 0.2 * format",
}
ROWS = [row(f"What is {n} + {n}?", str(2 * n)) for n in range(4)]


def completion(reward: float | None, *, finish: str = "stop", **more: Any) -> dict[str, Any]:
    given = {"text": "a", "token_ids": [1, 2, 3], "reward": reward, "parts": {"exact": reward}}
    return given | {"errors": {}, "advantage": 0.0, "finish_reason": finish, "policy_version": 1} | more


def scored(text: str, accuracy: float | None, formed: float, **more: Any) -> dict[str, Any]:
    """A completion under MULTI."""
    reward = None if accuracy is None else 0.8 * accuracy + 0.2 * formed
    return completion(reward, text=text, parts={"accuracy": accuracy, "format": formed}, **more)


def add_group(
    database: Database,
    job_id: str,
    step: int,
    position: int,
    completions: list[dict[str, Any]],
    *,
    split: str = "train",
    row: int = 0,
    **extra: Any,
) -> None:
    rewards = {one["reward"] for one in completions if one["reward"] is not None}
    has_signal = len(rewards) > 1
    data = {"row": row, "prompt": f"<user> {row}", "completions": completions, "has_signal": has_signal}
    data |= extra
    place = {"split": split, "step": step, "position": position}
    with database.transaction() as session:
        session.add(Rollout(job_id=job_id, has_signal=has_signal, data=data, **place))


def add_graded_job(
    settings: Settings,
    database: Database,
    *,
    content: bytes | None = None,
    grader: dict[str, Any] = MULTI,
    **hyperparameters: Any,
) -> str:
    """A job without rollouts yet, whose training file is there."""
    file_id = store_file(settings, database, jsonl(*ROWS) if content is None else content)
    method = METHOD.validate_python(reinforcement(grader, **hyperparameters))
    stored = dict(METHOD.dump_python(method, mode="json"))
    return add_job(database, JobState.SUCCEEDED, training_file=file_id, method=stored)
