"""Follows a running engine: records its events and log, publishes its checkpoints, forwards stop requests."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

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
from service.jobs.store import queue
from worker.attempt.attempt import Attempt
from worker.attempt.event_reader import EventReader
from worker.attempt.log_stream import LogStream
from worker.attempt.publish import publish_checkpoint
from worker.launchers.base import EVENTS, Place, Run

TICK_SECONDS = 0.05
SHORT_WAIT_SECONDS = 5.0
"""Waits for GPUs that are shorter than this get no entry in the job's history."""
StopRequest = Literal["cancel", "pause", "drain"]
Success = Finished | Probed | Exported


@dataclass
class Ending:
    """How an engine ended."""

    exit_code: int = 0
    """Exit status; negative if a signal ended it."""
    outcome: Success | Failed | Stopped | None = None
    """The event that says how the run ended; a success is final."""
    stop_request: StopRequest | None = None
    """The newest request that was forwarded to the engine."""
    is_stalled: bool = False
    log_tail: tuple[str, ...] = ()
    loss: str | None = None
    """Which host or process was lost, if that ended the engine."""


def await_place(attempt: Attempt, place: Place) -> Ending | None:
    """Wait for the place's GPUs, and show that in the job's phase.

    Returns an ending if the job has to stop first. Raises Lost.
    """
    shown, since = None, time.monotonic()
    while (missing := place.waiting_for()) is not None:
        if missing != shown and time.monotonic() - since > SHORT_WAIT_SECONDS:
            note_phase(attempt, f"waiting for {missing}")
            shown = missing
        attempt.worker.touch()
        if (request := requested_stop(attempt)) is not None:
            return Ending(stop_request=request)
        attempt.lease.wait(TICK_SECONDS)
    if shown is not None:
        note_phase(attempt, "starting")
    return None


def note_phase(attempt: Attempt, phase: str) -> None:
    """Show the phase of an attempt that has no engine yet. Raises Lost."""
    job = attempt.job
    attempt.write(lambda session: queue.note_phase(session, job.id, job.fence, phase))


def follow(attempt: Attempt, engine: Run, log: LogStream, on_step: Callable[[], None]) -> Ending:
    """Return when the engine has ended and everything that it wrote is stored. Raises Lost.

    `on_step` is called after steps are recorded, unless the engine has received a stop request.
    """
    reader, ending = EventReader(attempt.folder / EVENTS), Ending()
    last_event_at = time.monotonic()
    while True:
        exit_code = engine.poll()  # before reading, so that the file of an ended engine is complete
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
            ending.is_stalled = True
            engine.kill()
        forward_stop_request(attempt, engine, ending)
        log.store_if_due()
        if not events:
            engine.wait(TICK_SECONDS)
    if reader.num_dropped:
        message = f"Dropped {reader.num_dropped} unreadable lines of the engine's events."
        attempt.warn(message, {"num_dropped": reader.num_dropped})
    ending.exit_code, ending.log_tail, ending.loss = exit_code, engine.log_tail(), engine.loss()
    return ending


def forward_stop_request(attempt: Attempt, engine: Run, ending: Ending) -> None:
    """Forward a cancel, pause or drain. For an engine they are the same: write a checkpoint, then end."""
    request = requested_stop(attempt)
    if request is not None:
        ending.stop_request = request
        engine.stop(attempt.worker.settings.stop_grace_seconds)


def requested_stop(attempt: Attempt) -> StopRequest | None:
    """The stop request of the user or of the worker; None if there is none."""
    if attempt.lease.state is JobState.CANCELLING:
        return "cancel"
    if attempt.lease.state is JobState.PAUSING:
        return "pause"
    return "drain" if attempt.worker.draining.is_set() else None


def record_and_publish(attempt: Attempt, events: Sequence[Event], ending: Ending) -> None:
    """Record events; a checkpoint is published after all events before it are recorded."""
    start = 0
    for index, event in enumerate(events):
        if isinstance(event, CheckpointSaved):
            record(attempt, events[start : index + 1])
            publish_checkpoint(attempt, event)
            start = index + 1
        elif isinstance(event, Success | Failed | Stopped) and not isinstance(ending.outcome, Success):
            ending.outcome = event
    record(attempt, events[start:])


def record(attempt: Attempt, events: Sequence[Event]) -> None:
    """Write events to the database. Raises Lost."""
    job = attempt.job
    if events:
        rollouts = rollout_rows(job.id, events)
        attempt.write(lambda session: record_events(session, job.id, job.fence, events, rollouts))
        fault_point("events.recorded")
