"""While the engine runs: records its events, publishes its checkpoints, forwards stop requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import structlog

from grpo_engine.contract.events import (
    CheckpointSaved,
    Event,
    Exported,
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
from worker.attempt.event_reader import EventReader
from worker.attempt.publish import publish_checkpoint
from worker.launchers.local import EngineProcess

TICK_SECONDS = 0.05
StopRequest = Literal["cancel", "pause", "drain"]
logger = structlog.get_logger()


@dataclass
class Ending:
    """How an engine ended, and whether it had been asked to stop."""

    exit_code: int = 0
    """Negative: the signal that ended it."""
    finished: Finished | None = None
    probed: Probed | None = None
    exported: Exported | None = None
    failed: Failed | None = None
    stopped: Stopped | None = None
    stop_request: StopRequest | None = None
    stalled: bool = False
    log_tail: tuple[str, ...] = ()


def follow(attempt: Attempt, engine: EngineProcess, on_step: Callable[[], None]) -> Ending:
    """Return when the engine has ended and everything it wrote is stored. Raises Lost.

    `on_step` is called after steps were recorded, unless the engine has been asked to stop.
    """
    reader, ending = EventReader(attempt.folder / "events.jsonl"), Ending()
    last_event_at = time.monotonic()
    while True:
        exit_code = engine.poll()  # before reading: then the file of an ended engine is complete
        attempt.lease.check()
        attempt.worker.touch()
        if events := reader.read():
            last_event_at = time.monotonic()
            record_and_publish(attempt, events, ending)
            has_step = any(isinstance(event, StepFinished | StepSkipped) for event in events)
            if has_step and ending.stop_request is None:
                on_step()
        elif exit_code is not None:
            break
        elif time.monotonic() - last_event_at > attempt.worker.settings.stall_seconds:
            ending.stalled = True
            engine.kill()
        forward_stop_request(attempt, engine, ending)
        if not events:
            engine.wait(TICK_SECONDS)
    ending.exit_code, ending.log_tail = exit_code, engine.log_tail()
    _note_dropped(attempt, reader.num_dropped)
    return ending


def forward_stop_request(attempt: Attempt, engine: EngineProcess, ending: Ending) -> None:
    """Cancel, pause and drain mean the same to an engine: write a checkpoint, then end."""
    request = _stop_request(attempt)
    if request is not None:
        ending.stop_request = request
        engine.stop(attempt.worker.settings.stop_grace_seconds)


def _stop_request(attempt: Attempt) -> StopRequest | None:
    if attempt.lease.state is JobState.CANCELLING:
        return "cancel"
    if attempt.lease.state is JobState.PAUSING:
        return "pause"
    return "drain" if attempt.worker.draining.is_set() else None


def record_and_publish(attempt: Attempt, events: Sequence[Event], ending: Ending) -> None:
    """Record events; each checkpoint is published after all events before it are recorded."""
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
        elif isinstance(event, Exported):
            ending.exported = event
        elif isinstance(event, Failed):
            ending.failed = event
        elif isinstance(event, Stopped):
            ending.stopped = event
    record(attempt, events[start:])


def record(attempt: Attempt, events: Sequence[Event], *notes: history.HistoryEntry) -> None:
    """Write events and notes to the database. Raises Lost."""
    job = attempt.job
    if events or notes:
        rollouts = rollout_rows(job.id, events)
        attempt.write(lambda session: record_events(session, job.id, job.fence, events, rollouts, notes))
        fault_point("events.recorded")


def _note_dropped(attempt: Attempt, num_dropped: int) -> None:
    if num_dropped:
        message = f"Dropped {num_dropped} unreadable lines of the engine's events."
        data = {"num_dropped": num_dropped}
        record(attempt, [], history.HistoryEntry("message", message, "warn", data, attempt.job.fence))
