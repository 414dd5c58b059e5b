"""Checks plain records of a job's history and its stored archives, and returns violations.

Its only setting is how many attempts may fail in a row, so past jobs can be checked too.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from service.jobs.model.states import HELD, TERMINAL, TRANSITIONS, JobState

RESULTS = frozenset({"adapter", "model", "experiences"})
SHOWN_STEPS = 10
QUIET_SECONDS = 3600.0


@dataclass(frozen=True)
class Event:
    """One entry of the history (`JobEvent`)."""

    sequence: int
    at: float
    """Unix seconds by the database's clock."""
    type: str
    level: str
    fence: int
    data: dict[str, Any]

    @property
    def state(self) -> JobState | None:
        """The internal state that a `status` event reports; None for other events."""
        return JobState(self.data["state"]) if self.type == "status" else None


@dataclass(frozen=True)
class Stored:
    """A checkpoint's archive or a result: its row in the database, and what the storage holds."""

    name: str
    kind: str
    """`checkpoint`, `adapter`, `model`, `experiences` or `metrics`."""
    step: int
    fence: int
    """Fence of the attempt that wrote it."""
    sha256: str
    found_sha256: str | None
    """Digest of the stored content; None if the storage has nothing under the key."""
    was_deleted: bool = False
    """Whether its owner deleted it, so that the storage may hold nothing."""


@dataclass(frozen=True)
class Violation:
    """A broken rule."""

    rule: str
    message: str


def check_history(
    events: Sequence[Event],
    artifacts: Sequence[Stored],
    *,
    max_failures: int = 3,
    is_job: bool = True,
    now: float | None = None,
) -> list[Violation]:
    """The violations in a job's history; empty if it is sound.

    `events`: all of them, in order. `is_job`: False for a probe or an export: they leave no trained weights.
    `now`: by the database's clock; if given, a job that a worker holds must have an event in the last hour.
    """
    return [
        *_numbers(events),
        *_states(events),
        *_fences(events),
        *_metrics(events),
        *_attempts(events, max_failures),
        *_artifacts(events, artifacts, is_job),
        *(_progress(events, now - QUIET_SECONDS) if now is not None else ()),
    ]


def _numbers(events: Sequence[Event]) -> Iterator[Violation]:
    for expected, event in enumerate(events, 1):
        if event.sequence != expected:
            message = f"event {expected} is missing: {event.sequence} is in its place"
            yield Violation("events are numbered without gaps", message)
            return


def _states(events: Sequence[Event]) -> Iterator[Violation]:
    """Each change must be in the transition table, and no event may follow a terminal state."""
    before: Event | None = None
    for event in events:
        if before is not None and before.state in TERMINAL:
            message = f"event {event.sequence} follows the job's end, event {before.sequence}"
            yield Violation("terminal states never change", message)
        if event.state is None:
            continue
        if not _may_follow(before, event):
            came_from = before.state if before is not None else "nothing"
            message = f"event {event.sequence}: {came_from} → {event.state} under fence {event.fence}"
            yield Violation("states change as the transition table allows", message)
        before = event


def _may_follow(before: Event | None, event: Event) -> bool:
    if before is None or before.state is None or event.state is None:
        return event.state in (JobState.QUEUED, JobState.RUNNING)
    if event.state is before.state:  # another phase of the same attempt
        return event.state in HELD and event.fence == before.fence
    return event.state in TRANSITIONS[before.state]


def _fences(events: Sequence[Event]) -> Iterator[Violation]:
    """Fences never decrease, and each claim has a new one: only the newest holder may write."""
    newest, claims = 0, 0
    for event in events:
        if event.fence < newest:
            message = f"event {event.sequence} was written under fence {event.fence} after one under {newest}"
            yield Violation("fences never decrease", message)
        if _is_claim(event):
            if event.fence <= claims:
                message = f"event {event.sequence} claims under fence {event.fence}, which was used before"
                yield Violation("each claim has a new fence", message)
            claims = event.fence
        newest = max(newest, event.fence)


def _metrics(events: Sequence[Event]) -> Iterator[Violation]:
    """A published value must never change, and every step must have metrics."""
    known: dict[int, dict[str, Any]] = {}
    for event in (each for each in events if each.type == "metrics"):
        values = known.setdefault(int(event.data["step"]), {})
        for name, value in event.data.items():
            if values.setdefault(name, value) != value:
                message = f"event {event.sequence}: {name} of step {event.data['step']} has changed"
                yield Violation("a published metric never changes", message)
    if missing := set(range(1, max(known, default=0) + 1)) - set(known):
        shown = ", ".join(map(str, sorted(missing)[:SHOWN_STEPS])) + ", …" * (len(missing) > SHOWN_STEPS)
        message = f"steps {shown} have no metrics, later ones do"
        yield Violation("every step has its metrics", message)


def _attempts(events: Sequence[Event], max_failures: int) -> Iterator[Violation]:
    """At most `max_failures` attempts in a row may end without a new checkpoint."""
    failures = 0
    for event in events:
        if event.type == "message" and "checkpoint" in event.data:
            failures = 0
        elif event.state is JobState.QUEUED and event.level == "warn":
            failures += 1
            if failures >= max_failures:
                message = f"event {event.sequence} queues the job again after {failures} failures in a row"
                yield Violation("attempts are bounded", message)


def _artifacts(events: Sequence[Event], artifacts: Sequence[Stored], is_job: bool) -> Iterator[Violation]:
    claims = {event.fence for event in events if _is_claim(event)}
    for each in artifacts:
        if each.found_sha256 != each.sha256 and not each.was_deleted:
            message = f"{each.name} is {'different' if each.found_sha256 else 'missing'} in the storage"
            yield Violation("stored content never changes", message)
        if claims and each.fence not in claims:
            message = f"{each.name} was written under fence {each.fence}, which no claim has"
            yield Violation("only a holder publishes", message)
    yield from _results(events if is_job else [], [each for each in artifacts if each.kind in RESULTS])


def _results(events: Sequence[Event], results: Sequence[Stored]) -> Iterator[Violation]:
    """A job that succeeded must have exactly one result, from its last holder; other jobs must have none."""
    ends = [event for event in events if event.state is JobState.SUCCEEDED]
    found = [(each.name, each.fence) for each in results]
    if len(ends) != len(results) or any(each.fence != ends[-1].fence for each in results):
        message = f"{len(ends)} successes, but these results: {found}"
        yield Violation("a success has exactly one result", message)


def _progress(events: Sequence[Event], quiet_since: float) -> Iterator[Violation]:
    states = [event.state for event in events if event.state is not None]
    if states and states[-1] in HELD and events[-1].at < quiet_since:
        message = f"it is {states[-1].value}, but nothing has happened since event {events[-1].sequence}"
        yield Violation("a running job makes progress", message)


def _is_claim(event: Event) -> bool:
    return event.state is JobState.RUNNING and event.data.get("phase") == "preparing"
