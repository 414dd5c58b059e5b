"""A job's rollouts: groups of completions with rewards and advantages, newest step first, or exported.

Boundary: queries and shapes of the `rollouts` table; the caller has checked whose job it is.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterator, Mapping
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel
from sqlalchemy import ColumnElement, Select, and_, or_, select
from sqlalchemy.orm import Session

from grpo_engine.records import FinishReason
from service.db import Database
from service.jobs import names
from service.models import Job, Rollout

Filter = Literal["no_signal", "truncated", "grader_error", "best", "worst"]
BATCH_ROWS = 200


class RolloutRead(BaseModel):
    """One prompt of a step with its completions."""

    object: Literal["fine_tuning.job.rollout"] = "fine_tuning.job.rollout"
    id: str
    step: int
    split: str
    set: str | None = None
    """Name of the retention set, where `split` is retention."""
    position: int
    """Of the prompt in its step and split, from 0."""
    has_signal: bool
    row: int
    """Of the prompt in the dataset, from 0."""
    prompt: str
    completions: list[dict[str, Any]]
    """text, num_tokens, reward, parts, errors, advantage, finish_reason, policy_version."""


def rollout_page(
    session: Session,
    tenant: str,
    job_id: str,
    *,
    limit: int,
    step: int | None = None,
    split: str | None = None,
    wanted: Filter | None = None,
    after: tuple[str, int, int] | None = None,
) -> list[RolloutRead]:
    """`limit` + 1 groups at most: newest step first, or by mean reward for `best` and `worst`."""
    query = _chosen(tenant, job_id, step, split)
    if wanted in ("best", "worst"):
        return [rollout_read(row) for row in _extreme(session, query, limit + 1, best=wanted == "best")]
    if wanted == "no_signal":
        query = query.where(Rollout.has_signal.is_(False))
    if after is not None:
        query = query.where(_comes_after(*after))
    query = query.order_by(Rollout.step.desc(), Rollout.split, Rollout.position)
    if wanted in ("truncated", "grader_error"):
        return _first_matching(session, query, limit + 1, _PREDICATES[wanted])
    return [rollout_read(row) for row in session.scalars(query.limit(limit + 1))]


def rollout_read(row: Rollout) -> RolloutRead:
    """Without token ids, which the export has."""
    completions = [_without_tokens(completion) for completion in row.data["completions"]]
    return RolloutRead(
        id=names.rollout_id(row.split, row.step, row.position),
        step=row.step,
        split=row.split,
        set=row.data.get("set"),
        position=row.position,
        has_signal=row.has_signal,
        row=row.data["row"],
        prompt=row.data["prompt"],
        completions=completions,
    )


def exported_lines(
    database: Database, tenant: str, job_id: str, *, step: int | None, split: str | None
) -> Iterator[str]:
    """All groups as JSON lines in order of steps, token ids included; no transaction spans two batches."""
    last: tuple[str, int, int] | None = None
    while True:
        query = _chosen(tenant, job_id, step, split)
        if last is not None:
            query = query.where(_is_later(*last))
        query = query.order_by(Rollout.step, Rollout.split, Rollout.position).limit(BATCH_ROWS)
        with database.reading() as session:
            rows = list(session.scalars(query))
        for row in rows:
            place = {"step": row.step, "split": row.split, "position": row.position}
            yield json.dumps(place | row.data, ensure_ascii=False) + "\n"
        if len(rows) < BATCH_ROWS:
            return
        last = (rows[-1].split, rows[-1].step, rows[-1].position)


def _chosen(tenant: str, job_id: str, step: int | None, split: str | None) -> Select[Rollout]:
    query = select(Rollout).join(Job, Job.id == Rollout.job_id)
    query = query.where(Job.id == job_id, Job.tenant == tenant)
    if step is not None:
        query = query.where(Rollout.step == step)
    return query if split is None else query.where(Rollout.split == split)


def _comes_after(split: str, step: int, position: int) -> ColumnElement[bool]:
    """Further down the pages: an older step, or later in the same one."""
    return or_(Rollout.step < step, _is_later_in_step(split, step, position))


def _is_later(split: str, step: int, position: int) -> ColumnElement[bool]:
    return or_(Rollout.step > step, _is_later_in_step(split, step, position))


def _is_later_in_step(split: str, step: int, position: int) -> ColumnElement[bool]:
    in_split = and_(Rollout.split == split, Rollout.position > position)
    return and_(Rollout.step == step, or_(Rollout.split > split, in_split))


def _first_matching(
    session: Session, query: Select[Rollout], num: int, matches: Callable[[Rollout], bool]
) -> list[RolloutRead]:
    found: list[RolloutRead] = []
    for row in session.scalars(query.execution_options(yield_per=BATCH_ROWS)):
        if matches(row):
            found.append(rollout_read(row))
        if len(found) == num:
            break
    return found


def _extreme(session: Session, query: Select[Rollout], num: int, *, best: bool) -> list[Rollout]:
    scored = (
        (mean, row.step, row)
        for row in session.scalars(query.execution_options(yield_per=BATCH_ROWS))
        if (mean := _mean_reward(row.data)) is not None
    )
    choose = heapq.nlargest if best else heapq.nsmallest
    return [row for _, _, row in choose(num, scored, key=lambda found: found[:2])]


def _mean_reward(group: Mapping[str, Any]) -> float | None:
    rewards = [one["reward"] for one in group["completions"] if one.get("reward") is not None]
    return fmean(rewards) if rewards else None


def _is_truncated(row: Rollout) -> bool:
    return any(one["finish_reason"] == FinishReason.LENGTH.value for one in row.data["completions"])


def _has_grader_error(row: Rollout) -> bool:
    return any(one.get("errors") or one.get("reward") is None for one in row.data["completions"])


_PREDICATES: dict[str, Callable[[Rollout], bool]] = {
    "truncated": _is_truncated,
    "grader_error": _has_grader_error,
}


def _without_tokens(completion: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in completion.items() if name != "token_ids"}
    return {**shown, "num_tokens": len(completion.get("token_ids", ()))}
