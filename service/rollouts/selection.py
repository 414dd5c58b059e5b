"""Selects rollouts for lists of groups, lists of completions and exports.

A group is selected if one of its completions is, except for `no_signal`, a property of the group.
Boundary: pure; queries are in the repository.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from grpo_engine.contract.events import Split
from grpo_engine.contract.records import FinishReason
from service.platform.errors import InvalidRequest

Property = Literal["no_signal", "truncated", "grader_error"]
Filter = Literal[Property, "best", "worst"]
"""`best` and `worst` only sort by reward."""
Completion = Mapping[str, Any]
"""A completion as stored: the fields of `grpo_engine.contract.records.CompletionRecord`."""


@dataclass(frozen=True)
class Selection:
    """The selection of a request."""

    from_step: int | None = None
    to_step: int | None = None
    split: Split | None = None
    filter: Filter | None = None
    fired: tuple[str, ...] = ()
    """Parts of the reward that must all be above `fired_above`."""
    not_fired: tuple[str, ...] = ()
    """Parts that must all be at or below `fired_above`. A part that could not be scored meets neither."""
    fired_above: float = 0.0

    @property
    def looks_inside(self) -> bool:
        """Whether completions must be read to apply the selection."""
        return bool(self.fired or self.not_fired) or self.filter in ("truncated", "grader_error")

    @property
    def is_wide(self) -> bool:
        """Whether the completions of many steps must be read."""
        is_one_step = self.from_step is not None and self.from_step == self.to_step
        return not is_one_step and (self.looks_inside or self.filter in ("best", "worst"))

    def admits(self, completion: Completion) -> bool:
        """Whether a completion of a selected step is selected."""
        if self.filter == "truncated" and not is_truncated(completion):
            return False
        if self.filter == "grader_error" and not has_grader_error(completion):
            return False
        return self._fits_parts(completion.get("parts") or {})

    def _fits_parts(self, parts: Mapping[str, float | None]) -> bool:
        scores = [parts.get(name) for name in self.fired]
        others = [parts.get(name) for name in self.not_fired]
        return all(score is not None and score > self.fired_above for score in scores) and all(
            score is not None and score <= self.fired_above for score in others
        )


def is_truncated(completion: Completion) -> bool:
    """Whether a limit ended it; a failed session did not reach one."""
    has_failed = bool((completion.get("episode") or {}).get("failure"))
    return bool(completion["finish_reason"] == FinishReason.LENGTH.value) and not has_failed


def is_one_text(completion: Completion) -> bool:
    """Whether its text is all that the model wrote: it called no tools and acted in no environment."""
    return completion.get("turns", 1) == 1 and not completion.get("episode")


def has_grader_error(completion: Completion) -> bool:
    return bool(completion.get("errors")) or completion.get("reward") is None


def refuse_unknown_parts(selection: Selection, names: Sequence[str]) -> None:
    """Raises InvalidRequest for a part that no grader of the job has."""
    for param in ("fired", "not_fired"):
        for name in getattr(selection, param):
            if name not in names:
                there_are = f"its parts are {', '.join(names)}" if names else "it has no grader"
                message = f"{param}: the job's reward has no part {name!r}: {there_are}."
                raise InvalidRequest(message, param=param, code="unknown_part")
