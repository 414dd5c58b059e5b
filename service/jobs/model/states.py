"""The job's states and the one transition table.

    POST ─► queued ──claim──► running ──finish──► succeeded | failed
              ▲  ▲               │ │ └─cancel──► cancelling ──► cancelled
              │  │               │ └──pause──► pausing ──► paused ──resume──► queued
              │  │               ├─── a guard of the job ────► paused
              │  └─ release (drain) ┘
              └──── lease expired, engine died (backoff); too often without a checkpoint → failed

Terminal states never change. A write names the old state; 0 rows mean that another write was first.
"""

from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    CANCELLING = "cancelling"
    """Cancel was requested; the engine is writing its last checkpoint. Shown as running."""
    PAUSING = "pausing"
    """Pause was requested; the engine is writing a checkpoint. Shown as running."""
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


_FOLLOWING = {
    "queued": ("running", "cancelled", "paused"),
    "running": ("queued", "cancelling", "pausing", "paused", "succeeded", "failed"),
    "cancelling": ("cancelled", "succeeded"),
    "pausing": ("paused", "cancelling", "succeeded", "failed"),
    "paused": ("queued", "cancelled"),
}
TRANSITIONS = {state: frozenset(map(JobState, _FOLLOWING.get(state.value, ()))) for state in JobState}

TERMINAL = frozenset(state for state, following in TRANSITIONS.items() if not following)
ENDED = sorted(state.value for state in TERMINAL)
"""The terminal states as the database stores them."""
HELD = frozenset({JobState.RUNNING, JobState.CANCELLING, JobState.PAUSING})
"""States in which a worker holds a lease."""


def already(ended: JobState) -> str:
    """A terminal state as the end of a sentence: "has already failed"."""
    return "is already cancelled" if ended is JobState.CANCELLED else f"has already {ended.value}"


PUBLIC = {state: state for state in JobState} | {
    JobState.CANCELLING: JobState.RUNNING,
    JobState.PAUSING: JobState.RUNNING,
}
"""State → status that the API shows."""
