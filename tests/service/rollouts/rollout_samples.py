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


def turn(action: str, observation: str, reward: float | None = None, *, done: bool = False) -> dict[str, Any]:
    return {"action": action, "observation": observation, "reward": reward, "done": done}


def acted(reward: float | None, *turns: dict[str, Any], unanswered: str = "", **more: Any) -> dict[str, Any]:
    """A completion with an episode in the environment `words`."""
    failure = more.pop("failure", None)
    episode = {"environment": "words", "seed": 7, "turns": turns, "reward": reward, "failure": failure}
    given = {"turns": len(turns) + bool(unanswered), "episode": episode | {"unanswered": unanswered}}
    if failure:
        more["errors"] = {"rollout": {"code": "model_grader_server_error", "message": failure}}
    text = "".join(f"{each['action']}{each['observation']}" for each in turns) + unanswered
    return completion(reward, text=text, parts={"environment": reward}, **given | more)


def as_message(content: str) -> dict[str, Any]:
    """A group's prompt that is one message of the user."""
    message = {"role": "user", "start": 0, "end": len(content), "content": ""}
    return {"prompt": content, "messages": [message]}


LATE = "no answer within 30 s"
EPISODES = [
    acted(
        1.0,
        turn("crane", "two are right", 0.2),
        turn("<b>", "Error"),
        turn("crate", "solved", 1.0, done=True),
    ),
    acted(
        0.2,
        turn("I look.", "") | {"answers": [{"name": "find", "text": "Error: no answer", "failed": True}]},
        turn("slate", "two are right", 0.2),
        unanswered="sla",
        finish="length",
    ),
    acted(None, turn("slime", "one is right", 0.1), unanswered="crown", failure=LATE, finish="length"),
    acted(0.5, turn("I look.", "7"), turn("It is 7.", "")),
]
"""One that solved its task, one that called a tool and was cut, one whose session failed, one of an agent."""
TOOL_TURNS = [
    {"text": "I add.", "answers": [{"name": "add", "text": "7", "failed": False}]},
    {"text": "I search.", "answers": [{"name": "find", "text": "Error: no answer", "failed": True}]},
    {"text": "It is 7.", "answers": []},
]
