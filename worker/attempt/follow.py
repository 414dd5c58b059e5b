"""While the engine runs: its events into rows, its checkpoints into storage, our wishes to it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog

from grpo_engine.contract.events import (
    CheckpointSaved,
    Event,
    Failed,
    Finished,
    Probed,
    StepFinished,
    StepSkipped,
    Stopped,
)
from grpo_engine.process.fault_points import fault_point
from service.jobs.model.states import JobState
from service.jobs.progress.recording import record_events, rollout_rows
from service.jobs.store import history
from worker.attempt.attempt import Attempt
from worker.attempt.event_reader import Recorder
from worker.attempt.publish import publish_checkpoint
from worker.launchers.local import EngineProcess

TICK_SECONDS = 0.05
Wish = Literal["cancel", "pause", "drain"]
logger = structlog.get_logger()


@dataclass
class Ending:
    """How an engine ended, and what was asked of it."""

    exit_code: int = 0
    """Negative: the signal that ended it."""
    finished: Finished | None = None
    probed: Probed | None = None
    failed: Failed | None = None
    stopped: Stopped | None = None
    asked: Wish | None = None
    stalled: bool = False
    log_tail: tuple[str, ...] = ()


def follow(attempt: Attempt, engine: EngineProcess, at_steps: Callable[[], None]) -> Ending:
    """Until the engine has ended and all it wrote is stored. Raises Lost; then the engine is stopped too.

    `at_steps` is called whenever steps were recorded and nobody has asked for an end.
    """
    recorder, ending = Recorder(attempt.folder / "events.jsonl"), Ending()
    heard_at = time.monotonic()
    while True:
        exit_code = engine.poll()  # before reading: what a dead engine wrote is complete
        attempt.lease.check()
        attempt.worker.touch()
        if events := recorder.read():
            heard_at = time.monotonic()
            take(attempt, events, ending)
            if ending.asked is None and any(isinstance(each, StepFinished | StepSkipped) for each in events):
                at_steps()
        elif exit_code is not None:
            break
        elif time.monotonic() - heard_at > attempt.worker.settings.stall_seconds:
            ending.stalled = True
            engine.kill()
        ask(attempt, engine, ending)
        if not events:
            engine.wait(TICK_SECONDS)
    ending.exit_code, ending.log_tail = exit_code, engine.log_tail()
    _tell_dropped(attempt, recorder.num_dropped)
    return ending


def ask(attempt: Attempt, engine: EngineProcess, ending: Ending) -> None:
    """Cancel, pause and drain all mean the same to an engine: a checkpoint, then an end."""
    wish = _wish(attempt)
    if wish is not None:
        ending.asked = wish
        engine.stop(attempt.worker.settings.stop_grace_seconds)


def _wish(attempt: Attempt) -> Wish | None:
    if attempt.lease.state is JobState.CANCELLING:
        return "cancel"
    if attempt.lease.state is JobState.PAUSING:
        return "pause"
    return "drain" if attempt.worker.draining.is_set() else None


def take(attempt: Attempt, events: Sequence[Event], ending: Ending) -> None:
    """Record a run of events; each checkpoint is published after all that came before it is recorded."""
    start = 0
    for index, event in enumerate(events):
        if isinstance(event, CheckpointSaved):
            record(attempt, events[start : index + 1])
            publish_checkpoint(attempt, event)
            start = index + 1
        elif isinstance(event, Finished):
            ending.finished = event
        elif isinstance(event, Probed):
            ending.probed = event
        elif isinstance(event, Failed):
            ending.failed = event
        elif isinstance(event, Stopped):
            ending.stopped = event
    record(attempt, events[start:])


def record(attempt: Attempt, events: Sequence[Event], *notes: history.Entry) -> None:
    """Events and notes into the database. Raises Lost."""
    job = attempt.job
    if events or notes:
        rollouts = rollout_rows(job.id, events)
        attempt.write(lambda session: record_events(session, job.id, job.fence, events, rollouts, notes))
        fault_point("events.recorded")


def _tell_dropped(attempt: Attempt, num_dropped: int) -> None:
    if num_dropped:
        message = f"{num_dropped} unreadable lines of the engine's events were dropped."
        data = {"num_dropped": num_dropped}
        record(attempt, [], history.Entry("message", message, "warn", data, attempt.job.fence))
