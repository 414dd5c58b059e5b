"""The experience library E: short lessons with ids, which only operations change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from grpo_engine.contract.records import Record, storable


def _readable(text: str) -> str:
    if not one_line(text, len(text)):
        raise ValueError("the text has no printable character")
    return text


Words = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1), AfterValidator(_readable)]


class _Operation(BaseModel):
    """An operation as a model writes it; additional fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Add(_Operation):
    operation: Literal["add"]
    text: Words


class Modify(_Operation):
    operation: Literal["modify"]
    id: str
    text: Words


class Delete(_Operation):
    operation: Literal["delete"]
    id: str


class Keep(_Operation):
    """The lesson was useful, so it is evicted last."""

    operation: Literal["keep"]
    id: str


Operation = Annotated[Add | Modify | Delete | Keep, Field(discriminator="operation")]


class Experience(Record):
    id: str
    """`G0`, `G1`, …; numbers are never reused."""
    text: str
    """The lesson, on one line."""
    created_step: int
    changed_step: int
    useful_step: int
    """Newest step that added, changed or kept the lesson."""


@dataclass
class LibraryChanges:
    """Effects of a step's operations."""

    added: int = 0
    modified: int = 0
    deleted: int = 0
    evicted: int = 0
    """Number of lessons removed to stay within the limit."""
    ignored: int = 0
    """Number of operations on unknown ids, and of added lessons that already exist."""

    @property
    def any(self) -> bool:
        return bool(self.added or self.modified or self.deleted or self.evicted)

    def metrics(self) -> dict[str, float]:
        return {f"experiences/{name}": float(count) for name, count in asdict(self).items()}


class Library(Record):
    """E, in the order of the lessons' numbers."""

    experiences: tuple[Experience, ...] = ()
    next_number: int = 0
    version: int = 0
    """Number of steps that changed the library; an attempt records the version that it was made with."""

    def changed(
        self, operations: Sequence[Operation], step: int, *, limit: int, max_chars: int
    ) -> tuple[Library, LibraryChanges]:
        """E after the operations in order, with at most `limit` lessons of at most `max_chars` characters.

        Above the limit, the lesson with the oldest `useful_step` (of several, the lowest number) is evicted.
        """
        draft = _Draft({each.id: each for each in self.experiences}, self.next_number, step, max_chars)
        for operation in operations:
            draft.apply(operation)
        draft.shrink(limit)
        version = self.version + draft.changes.any
        changed = Library(
            experiences=tuple(draft.lessons.values()), next_number=draft.next_number, version=version
        )
        return changed, draft.changes

    def by_use(self) -> list[Experience]:
        """The lessons, most recently useful first."""
        return sorted(self.experiences, key=lambda each: (-each.useful_step, -number_of(each)))


def number_of(experience: Experience) -> int:
    return int(experience.id.removeprefix("G"))


@dataclass
class _Draft:
    """A library while operations are applied to it."""

    lessons: dict[str, Experience]
    next_number: int
    step: int
    max_chars: int
    changes: LibraryChanges = field(default_factory=LibraryChanges)

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, Add):
            self._add(one_line(operation.text, self.max_chars))
        elif operation.id not in self.lessons:
            self.changes.ignored += 1
        elif isinstance(operation, Modify):
            self._modify(operation.id, one_line(operation.text, self.max_chars))
        elif isinstance(operation, Delete):
            del self.lessons[operation.id]
            self.changes.deleted += 1
        else:
            self._touch(operation.id)

    def shrink(self, limit: int) -> None:
        while len(self.lessons) > limit:
            oldest = min(self.lessons.values(), key=lambda each: (each.useful_step, number_of(each)))
            del self.lessons[oldest.id]
            self.changes.evicted += 1

    def _add(self, text: str) -> None:
        for each in self.lessons.values():
            if each.text == text:
                self._touch(each.id)
                self.changes.ignored += 1
                return
        name = f"G{self.next_number}"
        self.next_number += 1
        self.lessons[name] = Experience(
            id=name, text=text, created_step=self.step, changed_step=self.step, useful_step=self.step
        )
        self.changes.added += 1

    def _modify(self, name: str, text: str) -> None:
        if self.lessons[name].text == text:
            self._touch(name)
            return
        update = {"text": text, "changed_step": self.step, "useful_step": self.step}
        self.lessons[name] = self.lessons[name].model_copy(update=update)
        self.changes.modified += 1

    def _touch(self, name: str) -> None:
        self.lessons[name] = self.lessons[name].model_copy(update={"useful_step": self.step})


def one_line(text: str, max_chars: int) -> str:
    """The text on one line of printable characters; a longer one ends at a word, with an ellipsis."""
    readable = storable(text)
    line = " ".join("".join(each if each.isprintable() else " " for each in readable).split())
    if len(line) <= max_chars:
        return line
    cut = line[: max_chars - 1]
    return (cut.rsplit(" ", 1)[0] if " " in cut else cut) + "…"
