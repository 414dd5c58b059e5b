"""The pure judge of a job's history: it finds nothing in a sound one, and each broken promise by its name."""

from dataclasses import replace
from typing import Any

import pytest

from service.jobs.results.integrity import Event, Stored, check_history


def status(sequence: int, state: str, fence: int, phase: str | None = None, level: str = "info") -> Event:
    return Event(sequence, float(sequence), "status", level, fence, {"state": state, "phase": phase or state})


def metrics(sequence: int, step: int, fence: int, **values: float) -> Event:
    return Event(sequence, float(sequence), "metrics", "info", fence, {"step": step, **values})


def saved(sequence: int, step: int, fence: int) -> Event:
    data = {"step": step, "checkpoint": f"ftckpt_{step}"}
    return Event(sequence, float(sequence), "message", "info", fence, data)


SOUND = (
    status(1, "queued", 0),
    status(2, "running", 1, "preparing"),
    status(3, "running", 1, "training"),
    metrics(4, 1, 1, reward=0.5),
    saved(5, 1, 1),
    status(6, "queued", 2, level="warn"),
    status(7, "running", 3, "preparing"),
    metrics(8, 2, 3, reward=0.6),
    status(9, "succeeded", 3),
)
ARCHIVES = (
    Stored("the checkpoint of step 1", "checkpoint", 1, 1, "aa", "aa"),
    Stored("adapter.tar.gz", "adapter", 2, 3, "bb", "bb"),
    Stored("metrics.csv", "metrics", 2, 3, "cc", "cc"),
)


def rules(events: tuple[Event, ...], artifacts: tuple[Stored, ...] = ARCHIVES, **more: Any) -> set[str]:
    return {violation.rule for violation in check_history(events, artifacts, **more)}


def with_event(index: int, event: Event) -> tuple[Event, ...]:
    return (*SOUND[:index], event, *SOUND[index + 1 :])


def test_a_sound_history_has_no_violation() -> None:
    assert check_history(SOUND, ARCHIVES, now=1e9) == []


@pytest.mark.parametrize("length", range(1, len(SOUND)))
def test_a_history_is_sound_at_every_moment(length: int) -> None:
    kept = tuple(each for each in ARCHIVES if each.kind == "checkpoint" and length >= 5)
    assert rules(SOUND[:length], kept) == set()


@pytest.mark.parametrize(
    ("broken", "events"),
    [
        ("events are numbered without gaps", (*SOUND[:3], *SOUND[4:])),
        ("terminal states never change", (*SOUND, saved(10, 3, 3))),
        ("states change as the transition table allows", with_event(5, status(6, "succeeded", 2))),
        ("states change as the transition table allows", with_event(5, status(6, "paused", 2, level="warn"))),
        ("fences never decrease", with_event(7, metrics(8, 2, 1, reward=0.6))),
        ("each claim has a new fence", with_event(6, status(7, "running", 1, "preparing"))),
        ("a published metric never changes", with_event(7, metrics(8, 1, 3, reward=0.6))),
        ("every step has its metrics", with_event(7, metrics(8, 3, 3, reward=0.6))),
    ],
)
def test_each_broken_promise_is_named(broken: str, events: tuple[Event, ...]) -> None:
    assert broken in rules(events)


def test_attempts_without_a_checkpoint_are_counted() -> None:
    lost = [status(1, "queued", 0)]
    for number in range(1, 4):
        lost += [status(2 * number, "running", number, "preparing")]
        lost += [status(2 * number + 1, "queued", number, level="warn")]
    assert rules(tuple(lost), ()) == {"attempts are bounded"}
    assert rules(tuple(lost), (), max_failures=4) == set()


def test_what_the_storage_holds_is_compared() -> None:
    damaged, missing = replace(ARCHIVES[0], found_sha256="zz"), replace(ARCHIVES[0], found_sha256=None)
    for found in (damaged, missing):
        assert rules(SOUND, (found, *ARCHIVES[1:])) == {"stored content never changes"}
    assert rules(SOUND, (replace(missing, was_deleted=True), *ARCHIVES[1:])) == set()


def test_a_success_has_one_result_of_its_last_holder() -> None:
    promise = {"a success has exactly one result"}
    assert rules(SOUND, ARCHIVES[:1]) == promise
    assert rules(SOUND, (*ARCHIVES, ARCHIVES[1])) == promise
    assert rules(SOUND, (ARCHIVES[0], replace(ARCHIVES[1], fence=1))) == promise
    assert rules(SOUND[:-1], ARCHIVES) == promise


def test_what_no_holder_wrote_is_found() -> None:
    assert rules(SOUND, (replace(ARCHIVES[0], fence=2), *ARCHIVES[1:])) == {"only a holder publishes"}


def test_a_held_job_that_is_silent_for_long_is_found() -> None:
    assert rules(SOUND[:4], (), now=3640.0) == {"a running job makes progress"}
    assert rules(SOUND[:4], (), now=3590.0) == set()
