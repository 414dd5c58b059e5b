"""A job's rollouts as files: all records, or datasets of the best answers or of preference pairs.

For a dataset, the groups are read twice, so that memory does not grow with the texts: first to choose a few
completions for each prompt (a row of the training file), then to read their texts in the order of the rows.
Excluded are completions that could not be scored, are empty, or called tools (their text alone is not what
the model saw). A truncated completion is never a good example.
All refusals happen before the first line is sent. No transaction spans two batches.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from service.platform.db import Database
from service.platform.errors import InvalidRequest
from service.platform.tables.core import Job
from service.rollouts import repository
from service.rollouts.datasets import Dataset
from service.rollouts.selection import Selection, is_one_text, is_truncated
from service.rollouts.service import search_limit

ROWS_AT_ONCE = 50

Row = dict[str, Any]
Order = Callable[["Candidate"], tuple[float, ...]]


def all_lines(database: Database, job: Job, selection: Selection) -> Iterator[str]:
    """The selected groups as JSON lines in order of steps, including token ids."""
    for batch in repository.batches(database, job.id, selection):
        for group in batch:
            if repository.is_selected(group, selection):
                place = {"step": group.step, "split": group.split, "position": group.position}
                yield json.dumps(place | repository.readable(group), ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Source:
    """The rollouts of one split for a dataset, and the file with their rows."""

    database: Database
    job: Job
    selection: Selection
    dataset: Dataset


@dataclass(frozen=True, slots=True)
class Candidate:
    """A completion, found again by its place in a split."""

    step: int
    position: int
    index: int
    reward: float
    digest: int
    """Digest of the text: equal answers are one example."""


Example = tuple[Candidate, ...]
"""One good answer, or a good and a bad one."""


def _best_first(one: Candidate) -> tuple[float, ...]:
    return (-one.reward, -one.step, one.position, one.index)


def _worst_first(one: Candidate) -> tuple[float, ...]:
    return (one.reward, -one.step, one.position, one.index)


@dataclass
class _Extremes:
    """The best and the worst answers to one prompt by digest, at most `num` of each."""

    num: int
    _best: dict[int, Candidate] = field(default_factory=dict)
    _worst: dict[int, Candidate] = field(default_factory=dict)

    def add(self, one: Candidate, *, may_be_best: bool) -> None:
        self._keep(self._worst, one, _worst_first)
        if may_be_best:
            self._keep(self._best, one, _best_first)

    @property
    def best(self) -> list[Candidate]:
        return sorted(self._best.values(), key=_best_first)

    @property
    def worst(self) -> list[Candidate]:
        return sorted(self._worst.values(), key=_worst_first)

    def _keep(self, kept: dict[int, Candidate], one: Candidate, order: Order) -> None:
        kept[one.digest] = min(kept.get(one.digest, one), one, key=order)
        if len(kept) > self.num:
            del kept[max(kept.values(), key=order).digest]


def best_answers(source: Source, *, min_reward: float, per_prompt: int) -> Iterator[str]:
    """Rows for `supervised` training: the best answers to each prompt.

    Raises InvalidRequest without any, TooManyRequests at the limit of searches.
    """
    with search_limit.slot(source.job.tenant):
        _refuse_low_rewards(source, min_reward)
        by_row = _extremes(source, per_prompt)
    found: dict[int, list[Example]] = {
        row: [(one,) for one in each.best if one.reward >= min_reward] for row, each in by_row.items()
    }
    if not any(found.values()):
        highest = max((one.reward for each in by_row.values() for one in each.best), default=None)
        seen = "none is complete and scored" if highest is None else f"the best one has {highest:g}"
        lacking = f"no selected, complete answer has a reward of {min_reward:g}"
        message = f"min_reward: {lacking}: {seen}.{_left_out(by_row)}"
        raise InvalidRequest(message, param="min_reward", code="nothing_to_export")
    return _lines(source, found, _supervised_row)


def preferences(source: Source, *, min_margin: float, per_prompt: int) -> Iterator[str]:
    """TRL's preference rows: a prompt's best answer with its worst, its second best with its second worst, …

    Raises InvalidRequest if no two rewards of a prompt differ by that much, TooManyRequests at the limit of
    searches.
    """
    with search_limit.slot(source.job.tenant):
        _refuse_equal_rewards(source, min_margin)
        by_row = _extremes(source, per_prompt)
    found = {row: list(_pairs(each, min_margin)) for row, each in by_row.items()}
    if not any(found.values()):
        lacking = f"no prompt has a complete answer whose reward is higher than another's{_apart(min_margin)}"
        message = f"min_margin: {lacking}.{_left_out(by_row)}"
        raise InvalidRequest(message, param="min_margin", code="nothing_to_export")
    return _lines(source, found, _preference_row)


def _refuse_low_rewards(source: Source, min_reward: float) -> None:
    """Refuse a dataset without examples before any group is read. Raises InvalidRequest."""
    with source.database.reading() as session:
        highest = repository.highest_reward(session, source.job.id, source.selection)
    if highest is None or highest < min_reward:
        seen = "none is scored" if highest is None else f"the best one has {highest:g}"
        message = f"min_reward: no completion has a reward of {min_reward:g}: {seen}."
        raise InvalidRequest(message, param="min_reward", code="nothing_to_export")


def _refuse_equal_rewards(source: Source, min_margin: float) -> None:
    """Refuse a dataset without pairs before any group is read. Raises InvalidRequest."""
    with source.database.reading() as session:
        if repository.has_different_rewards(session, source.job.id, source.selection, min_margin):
            return
    message = f"min_margin: no two completions of a prompt have different rewards{_apart(min_margin)}."
    raise InvalidRequest(message, param="min_margin", code="nothing_to_export")


def _apart(min_margin: float) -> str:
    return f" by {min_margin:g} or more" if min_margin else ""


def _left_out(by_row: Mapping[int, _Extremes]) -> str:
    """A sentence for the refusal if no completion is usable."""
    has_any = any(each.worst for each in by_row.values())
    return "" if has_any else " Completions that called tools or acted in an environment are left out."


def _lines(
    source: Source,
    examples: Mapping[int, Sequence[Example]],
    render: Callable[[Row, Example, Sequence[str]], Row],
) -> Iterator[str]:
    """The examples as JSON lines, in the order of the dataset's rows."""
    numbers = sorted(row for row, found in examples.items() if found)
    rows = source.dataset.rows(numbers)
    for start in range(0, len(numbers), ROWS_AT_ONCE):
        some = numbers[start : start + ROWS_AT_ONCE]
        texts = _texts(source, [one for row in some for example in examples[row] for one in example])
        for number, row in islice(rows, len(some)):
            for example in examples[number]:
                made = render(row, example, [texts[one] for one in example])
                yield json.dumps(made, ensure_ascii=False) + "\n"


def _supervised_row(row: Row, _example: Example, texts: Sequence[str]) -> Row:
    (text,) = texts
    if "messages" not in row:
        return {"prompt": row["prompt"], "completion": text}
    return {"messages": [*row["messages"], _answer(text)], **_tools(row)}


def _preference_row(row: Row, example: Example, texts: Sequence[str]) -> Row:
    """The row in TRL's conversational format, or in its standard format for a prompt without messages."""
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


def _pairs(answers: _Extremes, min_margin: float) -> Iterator[Example]:
    for chosen, rejected in zip(answers.best, answers.worst, strict=False):
        margin = chosen.reward - rejected.reward
        if margin > 0 and margin >= min_margin and chosen.digest != rejected.digest:
            yield chosen, rejected


def _extremes(source: Source, num: int) -> dict[int, _Extremes]:
    """Best and worst completions by row."""
    found: dict[int, _Extremes] = {}
    for batch in repository.batches(source.database, source.job.id, source.selection):
        for group in batch:
            answers = found.setdefault(group.data["row"], _Extremes(num))
            for index, completion in enumerate(group.data["completions"]):
                if _is_usable(completion) and source.selection.admits(completion):
                    place = (group.step, group.position, index)
                    one = Candidate(*place, completion["reward"], hash(completion["text"]))
                    answers.add(one, may_be_best=not is_truncated(completion))
    return found


def _is_usable(completion: Mapping[str, Any]) -> bool:
    is_scored = completion.get("reward") is not None
    return is_one_text(completion) and is_scored and bool(completion["text"].strip())


def _texts(source: Source, wanted: Sequence[Candidate]) -> dict[Candidate, str]:
    places = {(one.step, one.position) for one in wanted}
    with source.database.reading() as session:
        groups = repository.at_places(session, source.job.id, str(source.selection.split), places)
    by_place = {(group.step, group.position): group for group in groups}
    return {one: by_place[one.step, one.position].data["completions"][one.index]["text"] for one in wanted}
