"""What an engine's end means for its job."""

from __future__ import annotations

import signal
from typing import Any

from grpo_engine.contract.events import Failed, Finished
from grpo_engine.process.fault_points import fault_point
from service.jobs.model.states import JobState
from service.jobs.store import queue
from service.platform.storage import StorageDenied, StorageError
from worker.attempt.attempt import Attempt
from worker.attempt.follow import Ending
from worker.attempt.publish import publish_results

ASKED = {"cancel": JobState.CANCELLED, "pause": JobState.PAUSED}
EVIDENCE_LINES = 20


def conclude(attempt: Attempt, ending: Ending) -> None:
    """Success counts first, then what the user asked for, then failure; all else is tried again."""
    if ending.finished is not None:
        _conclude_success(attempt, ending.finished)
    elif ending.probed is not None:  # recorded like every event; a probe leaves no files
        end(attempt, JobState.SUCCEEDED)
    elif ending.asked == "cancel":
        end(attempt, JobState.CANCELLED)
    elif ending.failed is not None:
        fail(attempt, failure_of(ending.failed))
    elif ending.asked == "pause" or was_paused_by_guard(ending):
        end(attempt, JobState.PAUSED)
    elif ending.asked == "drain":
        give_back(attempt, "The worker is shutting down; another one goes on.", spend_failure=False)
    else:
        give_back(attempt, describe(ending), spend_failure=True, evidence=ending.log_tail)


def was_paused_by_guard(ending: Ending) -> bool:
    """The job itself asked for the pause; also where the worker is shutting down."""
    return ending.stopped is not None and ending.stopped.reason == "guard"


def _conclude_success(attempt: Attempt, event: Finished) -> None:
    try:
        publish_results(attempt, event)
    except StorageError as error:
        give_back_unstored(attempt, "The results were not stored", error)


def failure_of(event: Failed) -> dict[str, Any]:
    """The engine's own verdict, as the API shows it."""
    return event.model_dump(mode="json", include={"code", "message", "hint", "evidence"})


def describe(ending: Ending) -> str:
    """One sentence on an end that nobody asked for."""
    if ending.stalled:
        return "The engine hung: it said nothing for too long and was killed."
    if ending.exit_code < 0:
        return f"The engine was ended by {signal.Signals(-ending.exit_code).name}."
    return f"The engine ended with exit code {ending.exit_code} and no result."


def end(attempt: Attempt, state: JobState) -> None:
    """Cancelled, paused, or a probe's success. Raises Lost."""
    job = attempt.job
    attempt.write_directly(lambda session: queue.finish(session, job.id, job.fence, state))


def fail(attempt: Attempt, failure: dict[str, Any]) -> None:
    """Failed for good. Raises Lost."""
    job = attempt.job
    attempt.write_directly(
        lambda session: queue.finish(session, job.id, job.fence, JobState.FAILED, failure=failure)
    )


def give_back_unstored(attempt: Attempt, what: str, error: StorageError) -> None:
    """No storage: an outage is not the job's failure; a denial is one, or it would go on for ever."""
    give_back(attempt, f"{what}: {error.public}.", spend_failure=isinstance(error, StorageDenied))


def give_back(attempt: Attempt, reason: str, *, spend_failure: bool, evidence: tuple[str, ...] = ()) -> None:
    """Back to the queue, for any worker. Raises Lost."""
    job, settings = attempt.job, attempt.worker.settings
    attempt.write(
        lambda session: queue.release(
            session,
            job.id,
            job.fence,
            spend_failure=spend_failure,
            backoff_seconds=settings.retry_backoff_seconds if spend_failure else 0.0,
            reason=reason,
            max_failures=settings.max_attempts_without_checkpoint,
            evidence=evidence[-EVIDENCE_LINES:],
        )
    )
    fault_point("job.released")
    attempt.worker.wakeups.send(job.pool)
