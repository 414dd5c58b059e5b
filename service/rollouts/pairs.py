"""What a job has sampled as datasets for other training: the best answers, or good and bad ones in pairs.

First the groups are read once and a few places are kept for each prompt (a row of the dataset), then their
texts are read again in the order of the rows, beside the dataset itself: memory does not grow with the texts.
Left out everywhere: completions that could not be scored, that called tools (their text alone is not what
the model saw) or are empty; and no cut one is shown as a good example, for it never ends.
Boundary: which groups are read is the selection's; a dataset's rows are `datasets.py`'s.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from service.platform.db import Database
from service.platform.errors import InvalidRequest
from service.platform.tables.core import Rollout
from service.rollouts import repository
from service.rollouts.datasets import Dataset
from service.rollouts.selection import Selection, is_truncated

ROWS_AT_ONCE = 50

Row = dict[str, Any]
Order = Callable[["Candidate"], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A completion, found again by its place in a split."""

    step: int
    position: int
    index: int
    reward: float
    digest: int
    """Of the text: the same answer twice is one example."""


Example = tuple[Candidate, ...]
"""One good answer, or a good and a bad one."""


def _best_first(one: Candidate) -> tuple[float, ...]:
    return (-one.reward, -one.step, one.position, one.index)


def _worst_first(one: Candidate) -> tuple[float, ...]:
    return (one.reward, -one.step, one.position, one.index)


@dataclass(frozen=True, slots=True)
class Limits:
    """Which examples are worth having."""

    at_least: float
    """Reward of a good answer alone, or what it must have before the bad one."""
    per_prompt: int


@dataclass
class _Extremes:
    """The best and the worst answers to one prompt, those first, no text twice."""

    num: int
    best: list[Candidate] = field(default_factory=list)
    worst: list[Candidate] = field(default_factory=list)

    def add(self, one: Candidate, *, may_be_best: bool) -> None:
        self.worst = self._kept(self.worst, one, _worst_first)
        if may_be_best:
            self.best = self._kept(self.best, one, _best_first)

    def _kept(self, known: list[Candidate], one: Candidate, order: Order) -> list[Candidate]:
        same = [each for each in known if each.digest == one.digest]
        others = [each for each in known if each.digest != one.digest]
        return sorted([*others, min([*same, one], key=order)], key=order)[: self.num]


def best_answers(
    database: Database, job_id: str, selection: Selection, limits: Limits
) -> dict[int, list[Example]]:
    """Row → its best answers with at least this reward. Raises InvalidRequest if there is none."""
    known = _extremes(database, job_id, selection, limits.per_prompt)
    found: dict[int, list[Example]] = {
        row: [(one,) for one in each.best if one.reward >= limits.at_least] for row, each in known.items()
    }
    if not any(found.values()):
        highest = max((one.reward for each in known.values() for one in each.best), default=None)
        seen = "none is complete and scored" if highest is None else f"the best one has {highest:g}"
        message = f"min_reward: no selected completion has a reward of {limits.at_least:g}: {seen}."
        raise InvalidRequest(message, param="min_reward", code="nothing_to_export")
    return {row: examples for row, examples in found.items() if examples}


def preferences(
    database: Database, job_id: str, selection: Selection, limits: Limits
) -> dict[int, list[Example]]:
    """Row → its best answer with its worst, the second best with the second worst, and so on.

    Raises InvalidRequest if no two rewards of a prompt differ by that much.
    """
    known = _extremes(database, job_id, selection, limits.per_prompt)
    found = {row: list(_pairs(each, limits.at_least)) for row, each in known.items()}
    if not any(found.values()):
        apart = f" by {limits.at_least:g} or more" if limits.at_least else ""
        message = f"min_margin: no prompt has two completions whose rewards differ{apart}."
        raise InvalidRequest(message, param="min_margin", code="nothing_to_export")
    return {row: examples for row, examples in found.items() if examples}


def lines(
    database: Database,
    job_id: str,
    split: str,
    dataset: Dataset,
    examples: Mapping[int, Sequence[Example]],
    render: Callable[[Row, Example, Sequence[str]], Row],
) -> Iterator[str]:
    """The examples as JSON lines, in the order of the dataset's rows."""
    numbers = sorted(examples)
    rows = dataset.rows(numbers)
    for start in range(0, len(numbers), ROWS_AT_ONCE):
        some = numbers[start : start + ROWS_AT_ONCE]
        wanted = [one for row in some for example in examples[row] for one in example]
        texts = _texts(database, job_id, split, wanted)
        for number, row in islice(rows, len(some)):
            for example in examples[number]:
                made = render(row, example, [texts[one] for one in example])
                yield json.dumps(made, ensure_ascii=False) + "\n"


def supervised_row(row: Row, _example: Example, texts: Sequence[str]) -> Row:
    """As a `supervised` job of this service takes it."""
    (text,) = texts
    if "messages" not in row:
        return {"prompt": row["prompt"], "completion": text}
    return {"messages": [*row["messages"], _answer(text)], **_tools(row)}


def preference_row(row: Row, example: Example, texts: Sequence[str]) -> Row:
    """As TRL's preference trainers take it: conversational, or standard for a prompt without messages."""
    chosen, rejected = texts
    margin = {"margin": example[0].reward - example[1].reward}
    if "messages" not in row:
        return {"prompt": row["prompt"], "chosen": chosen, "rejected": rejected, **margin}
    both = {"chosen": [_answer(chosen)], "rejected": [_answer(rejected)]}
    return {"prompt": row["messages"], **both, **_tools(row), **margin}


def _answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def _tools(row: Row) -> Row:
    return {"tools": row["tools"]} if row.get("tools") else {}


def _pairs(known: _Extremes, min_margin: float) -> Iterator[Example]:
    for chosen, rejected in zip(known.best, known.worst, strict=False):
        margin = chosen.reward - rejected.reward
        if margin > 0 and margin >= min_margin and chosen.digest != rejected.digest:
            yield chosen, rejected


def _extremes(database: Database, job_id: str, selection: Selection, num: int) -> dict[int, _Extremes]:
    found: dict[int, _Extremes] = {}
    for batch in repository.batches(database, job_id, selection):
        for group in batch:
            known = found.setdefault(group.data["row"], _Extremes(num))
            for index, completion in enumerate(group.data["completions"]):
                if _is_usable(completion) and selection.admits(completion):
                    place = (group.step, group.position, index)
                    one = Candidate(*place, completion["reward"], hash(completion["text"]))
                    known.add(one, may_be_best=not is_truncated(completion))
    return found


def _is_usable(completion: Mapping[str, Any]) -> bool:
    is_one_turn = completion.get("turns", 1) == 1
    return is_one_turn and completion.get("reward") is not None and bool(completion["text"].strip())


def _texts(database: Database, job_id: str, split: str, wanted: Sequence[Candidate]) -> dict[Candidate, str]:
    with database.reading() as session:
        places = {(one.step, one.position) for one in wanted}
        groups = repository.at_places(session, job_id, split, places)
    by_place: dict[tuple[int, int], Rollout] = {(group.step, group.position): group for group in groups}
    return {one: by_place[one.step, one.position].data["completions"][one.index]["text"] for one in wanted}
