"""Reads the facts about a run from the database."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.jobs.diagnosis.findings import Diagnosis
from service.jobs.diagnosis.rules import diagnose
from service.jobs.diagnosis.run import Groups, GuardWarning, Run
from service.jobs.model.states import JobState
from service.jobs.progress import metrics
from service.jobs.store.repository import require_job
from service.platform.db import Database
from service.platform.tables.core import File, JobEvent, Rollout

MAX_GROUPS = 200
"""Only the newest groups are read: enough to compute shares, in bounded time."""
MAX_ANSWERS = 50
"""Maximum answers of an evaluation that are read: enough to find one that nearly all rows get."""
QUOTED = 40
"""Maximum characters of a quoted answer or question."""
SHOWN_CHARACTERS = 200
"""Maximum characters of a failed call's answer."""
FULL_REWARD = 1.0
"""The reward that the engine counts as passed."""
GUARD = "guard_"
"""Start of the codes of the guards' warnings."""


def diagnosis_of(database: Database, tenant: str, job_id: str) -> Diagnosis:
    """The diagnosis of the tenant's job. Raises NotFound."""
    with database.reading() as session:
        run = _read(session, tenant, job_id)
    return diagnose(run)


def _read(session: Session, tenant: str, job_id: str) -> Run:
    job = require_job(session, tenant, job_id)
    state = JobState(job.state)
    newest = select(Rollout.step, Rollout.data).where(Rollout.job_id == job_id, Rollout.split == "train")
    newest = newest.order_by(Rollout.step.desc(), Rollout.position).limit(MAX_GROUPS)
    groups = [(step, data) for step, data in session.execute(newest)]
    return Run(
        job_id=job_id,
        state=state,
        method=job.method,
        step=job.step,
        total_steps=job.total_steps,
        num_rows=session.scalar(select(File.num_rows).where(File.id == job.training_file)),
        metrics=metrics.metric_rows(session, tenant, job_id),
        groups=counted([(step, data["completions"]) for step, data in groups]),
        evaluation=job.evaluation,
        failure=job.failure if state is JobState.FAILED else None,
        guards=guard_warnings(session, job_id),
        frequent_answer=_frequent_answer(session, job_id),
        unrewarded=next((_example(data) for _, data in groups if _is_unrewarded(data)), ""),
    )


def _frequent_answer(session: Session, job_id: str) -> str:
    held_out = select(Rollout.data).where(Rollout.job_id == job_id, Rollout.split == "validation")
    newest = held_out.order_by(Rollout.step.desc(), Rollout.position).limit(MAX_ANSWERS)
    texts = Counter(one["text"] for data in session.scalars(newest) for one in data["completions"])
    return _quoted(texts.most_common(1)[0][0]) if texts else ""


def _is_unrewarded(group: Mapping[str, Any]) -> bool:
    rewards = _rewards(group["completions"])
    return bool(rewards) and max(rewards) <= 0


def _example(group: Mapping[str, Any]) -> str:
    """Its first answer, and the last message of its prompt."""
    messages, prompt = group.get("messages"), group["prompt"]
    asked = prompt[messages[-1]["start"] : messages[-1]["end"]] if messages else prompt
    return f"{_quoted(group['completions'][0]['text'])} for {_quoted(asked)}"


def _quoted(text: str) -> str:
    """On one line, cut if it is long."""
    line = " ".join(text.split())
    return f'"{line if len(line) <= QUOTED else line[:QUOTED] + "…"}"'


def guard_warnings(session: Session, job_id: str) -> list[GuardWarning]:
    """All of the job's history, in order."""
    entries = select(JobEvent.message, JobEvent.data).where(JobEvent.job_id == job_id)
    entries = entries.where(JobEvent.type == "message", JobEvent.level == "warn").order_by(JobEvent.sequence)
    return [
        GuardWarning(data["code"], message, data.get("step") or _step_in(message))
        for message, data in session.execute(entries)
        if str(data.get("code", "")).startswith(GUARD)
    ]


def _step_in(message: str) -> int:
    """Step of an older warning, which has it only in its text: "… up to step 147. …"."""
    found = re.search(r"step (\d+)\.", message)
    return int(found[1]) if found else 0


Completions = Sequence[Mapping[str, Any]]


def counted(groups: Sequence[tuple[int, Completions]]) -> Groups:
    """Counts groups, given with their steps, newest first."""
    if not groups:
        return Groups()
    flat = [rewards[0] for _, one in groups if len(set(rewards := _rewards(one))) == 1]
    num_wrong, num_right = sum(reward <= 0 for reward in flat), sum(reward >= FULL_REWARD for reward in flat)
    return Groups(
        num=len(groups),
        num_wrong=num_wrong,
        num_right=num_right,
        num_between=len(flat) - num_wrong - num_right,
        first_step=groups[-1][0],
        last_step=groups[0][0],
        errors=_counted_by_name(_errors(groups)),
        failed_sessions=_counted_by_name(_failed_sessions(groups)),
        failed_calls=_counted_by_name(_failed_calls(groups)),
    )


def _rewards(completions: Completions) -> list[float]:
    return [one["reward"] for one in completions if one.get("reward") is not None]


def _counted_by_name(found: Iterable[tuple[str, str]]) -> dict[str, tuple[int, str]]:
    """Name → number of its texts, and the first of them."""
    counts: dict[str, tuple[int, str]] = {}
    for name, text in found:
        count, first = counts.get(name, (0, text))
        counts[name] = (count + 1, first)
    return counts


def _errors(groups: Sequence[tuple[int, Completions]]) -> Iterator[tuple[str, str]]:
    """Code and message of each error, the newest first."""
    for step, completions in groups:
        for completion in completions:
            for part, error in (completion.get("errors") or {}).items():
                yield error["code"], f"in step {step} of {part}: {error['message']}"


def _failed_sessions(groups: Sequence[tuple[int, Completions]]) -> Iterator[tuple[str, str]]:
    """Environment and reason of each failed session, the newest first."""
    for step, completions in groups:
        for episode in (completion.get("episode") or {} for completion in completions):
            if reason := episode.get("failure"):
                yield episode["environment"], f"in step {step}: {reason}"


def _failed_calls(groups: Sequence[tuple[int, Completions]]) -> Iterator[tuple[str, str]]:
    """Tool and answer of each failed call, the newest first; calls that cannot be read name no tool."""
    for step, completions in groups:
        turns = (turn for each in completions for turn in each.get("tool_turns") or ())
        for answer in (answer for turn in turns for answer in turn["answers"] if answer["failed"]):
            shown = " ".join(answer["text"].split())[:SHOWN_CHARACTERS]
            yield answer["name"] or "unreadable call", f"in step {step}: {shown}"
