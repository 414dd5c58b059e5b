"""Queries of the `rollouts` table: pages of groups or of completions, and batches of all selected groups.

Filters on completions are applied to rows after they are read; a range of steps bounds their number.
Boundary: the caller has checked the job's tenant.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from statistics import fmean
from typing import Any, Literal

from sqlalchemy import (
    ColumnElement,
    Double,
    Select,
    and_,
    cast,
    column,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from service.jobs.model import names
from service.platform.db import Database, is_postgresql
from service.platform.tables.core import Rollout
from service.rollouts.schemas import CompletionRead, RolloutRead, SplitSteps
from service.rollouts.selection import Selection

BATCH_ROWS = 200
Unit = Literal["group", "completion"]
Key = tuple[float | str, ...]
"""An entry's sort key: by reward if requested, then newest step first."""


@dataclass(frozen=True, slots=True)
class RolloutEntry:
    """One line of a list: a group, or a completion of it."""

    group: Rollout
    index: int | None = None
    """Index of the completion; None: the group itself."""

    @property
    def reward(self) -> float | None:
        """The completion's reward, or the group's mean reward."""
        if self.index is None:
            return mean_reward(self.group.data)
        return self.group.data["completions"][self.index].get("reward")  # type: ignore[no-any-return]

    @property
    def place(self) -> Key:
        return (-self.group.step, self.group.split, self.group.position, self.index or 0)

    def key(self, selection: Selection) -> Key:
        match selection.filter:
            case "best":
                return (-(self.reward or 0.0), *self.place)
            case "worst":
                return (self.reward or 0.0, *self.place)
        return self.place


def page(
    database: Database,
    job_id: str,
    selection: Selection,
    unit: Unit,
    *,
    limit: int,
    after: RolloutEntry | None,
) -> list[RolloutEntry]:
    """At most `limit` + 1 entries after the entry `after`, newest step first or by reward."""
    by_reward = selection.filter in ("best", "worst")
    reads_all = by_reward or selection.looks_inside
    groups = batches(
        database,
        job_id,
        selection,
        newest_first=True,
        start=None if by_reward or after is None else after.group,
        size=BATCH_ROWS if reads_all else limit + 2,  # includes the cursor's own group
    )
    found = (entry for group in chain.from_iterable(groups) for entry in _entries(group, selection, unit))
    if by_reward:
        found = (entry for entry in found if entry.reward is not None)
    if after is not None:
        seen = after.key(selection)
        found = (entry for entry in found if entry.key(selection) > seen)
    if by_reward:
        return heapq.nsmallest(limit + 1, found, key=lambda entry: entry.key(selection))
    return list(islice(found, limit + 1))


def batches(
    database: Database,
    job_id: str,
    selection: Selection,
    *,
    newest_first: bool = False,
    start: Rollout | None = None,
    size: int = BATCH_ROWS,
) -> Iterator[list[Rollout]]:
    """The groups of the selection's steps in order, from the group `start`; no transaction spans two batches.

    Filters on completions are not applied here.
    """
    step = Rollout.step.desc() if newest_first else Rollout.step
    query = _chosen(job_id, selection).order_by(step, Rollout.split, Rollout.position).limit(size)
    rest = query if start is None else query.where(_from(start, newest_first=newest_first, itself=True))
    while True:
        with database.reading() as session:
            rows = list(session.scalars(rest))
        yield rows
        if len(rows) < size:
            return
        rest = query.where(_from(rows[-1], newest_first=newest_first, itself=False))


def at_places(session: Session, job_id: str, split: str, places: Iterable[tuple[int, int]]) -> list[Rollout]:
    """Groups of one split by (step, position), in no order."""
    query = select(Rollout).where(Rollout.job_id == job_id, Rollout.split == split)
    return list(session.scalars(query.where(tuple_(Rollout.step, Rollout.position).in_(list(places)))))


def has_different_rewards(session: Session, job_id: str, selection: Selection, margin: float) -> bool:
    """Whether two completions of one prompt have different rewards, by at least `margin`.

    Filters on completions are not applied, as in `batches`.
    """
    rewards, reward = _rewards(session)
    difference = func.max(reward) - func.min(reward)
    chosen = _chosen(job_id, selection).with_only_columns(literal(1)).select_from(Rollout)
    by_prompt = chosen.join(rewards, true()).group_by(Rollout.data["row"].as_integer())
    return session.scalar(by_prompt.having(difference > 0, difference >= margin).limit(1)) is not None


def highest_reward(session: Session, job_id: str, selection: Selection) -> float | None:
    """The highest reward of a completion; None: none is scored. Filters on completions are not applied."""
    rewards, reward = _rewards(session)
    chosen = _chosen(job_id, selection).with_only_columns(func.max(reward)).select_from(Rollout)
    return session.scalar(chosen.join(rewards, true()))


def _rewards(session: Session) -> tuple[Any, Any]:
    """The completions of a group as a table to join, and the reward of each. The database reads them several
    times faster than Python parses the groups."""
    if is_postgresql(session):
        path: ColumnElement[str] = literal_column("'$.completions[*].reward ? (@ != null)'")
        found = func.jsonb_path_query(Rollout.data, path)
        scores = found.table_valued(column("reward", JSONB)).render_derived()
        return scores, cast(scores.c.reward, Double)
    completions = func.json_each(Rollout.data, "$.completions").table_valued("value")
    return completions, func.json_extract(completions.c.value, "$.reward")


def steps(session: Session, job_id: str) -> list[SplitSteps]:
    """The steps that have rollouts, by split."""
    place = Rollout.split, Rollout.step
    query = select(*place, func.count()).where(Rollout.job_id == job_id).group_by(*place).order_by(*place)
    found: dict[str, list[tuple[int, int]]] = {}
    for split, step, num_groups in session.execute(query):
        found.setdefault(split, []).append((step, num_groups))
    return [
        SplitSteps(split=split, steps=[step for step, _ in each], groups=[num for _, num in each])
        for split, each in found.items()
    ]


def rollout_read(entry: RolloutEntry) -> RolloutRead:
    group = entry.group
    own = {"id": _id(group), "completions": group.data["completions"]}
    return RolloutRead.model_validate({**_group_fields(group), **own})


def completion_read(entry: RolloutEntry) -> CompletionRead:
    group, index = entry.group, entry.index or 0
    own = {
        "id": names.completion_id(group.split, group.step, group.position, index),
        "rollout_id": _id(group),
        "index": index,
    }
    completion = group.data["completions"][index]
    return CompletionRead.model_validate({**_group_fields(group), **completion, **own})


def readable(group: Rollout) -> dict[str, Any]:
    """The group as the API shows it: its messages have their content instead of a place in the prompt."""
    data = group.data
    return {**data, "messages": [_message(each, data["prompt"]) for each in data.get("messages", ())]}


def _message(stored: Mapping[str, Any], prompt: str) -> dict[str, str]:
    return {"role": stored["role"], "content": stored["content"] or prompt[stored["start"] : stored["end"]]}


def mean_reward(group: Mapping[str, Any]) -> float | None:
    """Mean reward of the scored completions; None if there is none."""
    rewards = [one["reward"] for one in group["completions"] if one.get("reward") is not None]
    return fmean(rewards) if rewards else None


def _id(group: Rollout) -> str:
    return names.rollout_id(group.split, group.step, group.position)


def _group_fields(group: Rollout) -> dict[str, Any]:
    return {
        "step": group.step,
        "split": group.split,
        "set": group.data.get("set"),
        "position": group.position,
        "has_signal": group.has_signal,
        "mean_reward": mean_reward(group.data),
        "row": group.data["row"],
        "prompt": group.data["prompt"],
        "messages": readable(group)["messages"],
        "reference": group.data.get("reference", {}),
    }


def _entries(group: Rollout, selection: Selection, unit: Unit) -> Iterator[RolloutEntry]:
    completions = group.data["completions"]
    if unit == "completion":
        yield from (
            RolloutEntry(group, index)
            for index, completion in enumerate(completions)
            if selection.admits(completion)
        )
    elif is_selected(group, selection):
        yield RolloutEntry(group)


def is_selected(group: Rollout, selection: Selection) -> bool:
    """Whether a group, whose step is selected, has a completion that is selected."""
    completions = group.data["completions"]
    return not selection.looks_inside or any(selection.admits(completion) for completion in completions)


def _chosen(job_id: str, selection: Selection) -> Select[Rollout]:
    query = select(Rollout).where(Rollout.job_id == job_id)
    if selection.from_step is not None:
        query = query.where(Rollout.step >= selection.from_step)
    if selection.to_step is not None:
        query = query.where(Rollout.step <= selection.to_step)
    if selection.filter == "no_signal":
        query = query.where(Rollout.has_signal.is_(False))
    return query if selection.split is None else query.where(Rollout.split == selection.split)


def _from(group: Rollout, *, newest_first: bool, itself: bool) -> ColumnElement[bool]:
    """Condition that selects all groups from this one on, in the order of steps, splits and positions."""
    first = group.position if itself else group.position + 1
    in_split = and_(Rollout.split == group.split, Rollout.position >= first)
    in_step = and_(Rollout.step == group.step, or_(Rollout.split > group.split, in_split))
    return or_(Rollout.step < group.step if newest_first else Rollout.step > group.step, in_step)
