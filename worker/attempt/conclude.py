"""Records how an attempt ended: success, the user's request, failure, or release for another attempt."""

import errno
import signal
from typing import Any

import structlog

from grpo_engine.contract.errors import EngineError
from grpo_engine.contract.events import Exported, Failed, Finished, Probed, Stopped
from grpo_engine.process.fault_points import fault_point
from service.jobs.model.states import JobState
from service.jobs.store import queue
from service.platform.catalog import CatalogError
from service.platform.db import OUTAGES
from service.platform.errors import Unavailable
from service.platform.storage import ObjectMissing, StorageDenied, StorageError
from worker.attempt.attempt import Attempt, Refused
from worker.attempt.follow import Ending
from worker.attempt.publish import publish_export, publish_results
from worker.cluster.plan import ClusterLost
from worker.masking import mask_secrets

logger = structlog.get_logger()
EVIDENCE_LINES, MAX_LINE_CHARACTERS = 20, 500
DISK_FULL = Refused(
    "disk_full", "The worker's disk is full.", "Free space on the worker's disk and submit the job again."
)
OUT_OF_MEMORY = "Usually the machine or its container had no memory left."


def conclude(attempt: Attempt, ending: Ending) -> None:
    """Record the end. The order of precedence is: success, cancellation, failure, pause; any other end is
    retried. Raises Lost."""
    try:
        _conclude(attempt, ending)
    except (StorageError, CatalogError) as error:
        release_unstored(attempt, "The results were not stored", error)


def _conclude(attempt: Attempt, ending: Ending) -> None:
    match ending.outcome, ending.stop_request:
        case Finished() as finished, _:
            publish_results(attempt, finished)
        case Exported() as exported, _:
            publish_export(attempt, exported)
        case Probed(), _:  # its results are already recorded as an event; a probe has no files
            finish(attempt, JobState.SUCCEEDED)
        case _, "cancel":
            finish(attempt, JobState.CANCELLED)
        case Failed() as failed, _:
            fail(attempt, failed)
        case (_, "pause") | (Stopped(reason="guard"), _):
            finish(attempt, JobState.PAUSED)
        case _, "drain":
            reason = "The worker is shutting down; another one continues the job."
            release(attempt, reason, counts_as_failure=False)
        case _:
            evidence = public_lines(ending.log_tail)
            release(attempt, describe(ending, evidence), counts_as_failure=True, evidence=evidence)


def fail(attempt: Attempt, failed: Failed) -> None:
    """End the job; after an unexpected exception, retry it once on any machine. Raises Lost."""
    message, evidence = mask_secrets(failed.message), tuple(map(mask_secrets, failed.evidence))
    failure = {"code": failed.code, "message": message, "hint": failed.hint, "evidence": list(evidence)}
    if failed.code == EngineError.code:
        release(attempt, message, counts_as_failure=True, evidence=evidence, failure=failure)
    else:
        finish(attempt, JobState.FAILED, failure)


def conclude_error(attempt: Attempt, error: Exception, error_id: str) -> None:
    """End the attempt after an error outside the engine, and name its cause if it is known. Raises Lost."""
    match error:
        case Refused():
            finish(attempt, JobState.FAILED, error.failure)
        case Unavailable():
            release(attempt, error.message, counts_as_failure=True)
        case StorageError() | CatalogError():
            release_unstored(attempt, "The job's files were not fetched", error)
        case ClusterLost():
            # a private cluster is part of this machine, so if it never starts, the job must end
            is_private = attempt.worker.settings.launcher == "local"
            release(attempt, mask_secrets(str(error)), counts_as_failure=is_private, backoff=True)
        case OSError(errno=errno.ENOSPC | errno.EDQUOT):
            finish(attempt, JobState.FAILED, DISK_FULL.failure)
        case _:
            release(
                attempt, f"{_cause(error)} (id {error_id}); see the worker's log.", counts_as_failure=True
            )


def describe(ending: Ending, evidence: tuple[str, ...]) -> str:
    """Why an engine ended without a result, with its last line of output."""
    if ending.is_stalled:
        return "The engine reported nothing for too long and was killed."
    if ending.loss:
        return mask_secrets(ending.loss)
    if ending.exit_code < 0:
        ended = f"The engine was ended by {signal.Signals(-ending.exit_code).name}."
        return f"{ended} {OUT_OF_MEMORY}" if -ending.exit_code == signal.SIGKILL else ended
    last_line = next((line for line in reversed(evidence) if line.strip()), "")
    printed = f" Its last output: {last_line.strip()}" if last_line else ""
    return f"The engine ended with exit code {ending.exit_code} and no result.{printed}"


def public_lines(log_tail: tuple[str, ...]) -> tuple[str, ...]:
    """The last lines of an engine's log, shortened and without secrets, so that a job may show them."""
    return tuple(mask_secrets(line)[:MAX_LINE_CHARACTERS] for line in log_tail[-EVIDENCE_LINES:])


def finish(attempt: Attempt, state: JobState, failure: dict[str, Any] | None = None) -> None:
    """End the attempt in this state. Raises Lost."""
    job = attempt.job
    attempt.write(lambda session: queue.finish(session, job.id, job.fence, state, failure=failure))
    about = {name: failure[name] for name in ("code", "message")} if failure else {}
    logger.info("job ended", state=state.value, **about)


def release_unstored(attempt: Attempt, what: str, error: StorageError | CatalogError) -> None:
    """Requeue the job. Denied access and a missing object count as a failure, so that retries end; an outage
    does not."""
    is_failure = isinstance(error, StorageDenied | ObjectMissing)
    release(attempt, f"{what}: {error.public}.", counts_as_failure=is_failure)


def release(
    attempt: Attempt,
    reason: str,
    *,
    counts_as_failure: bool,
    backoff: bool = False,
    evidence: tuple[str, ...] = (),
    failure: dict[str, Any] | None = None,
) -> None:
    """Requeue the job, if the queue allows another attempt. Raises Lost.

    `backoff`: delay the next attempt even without a failure.
    """
    job, settings = attempt.job, attempt.worker.settings
    if counts_as_failure:
        attempt.worker.gpu_check.try_again(attempt.gpus.names)
    attempt.write(
        lambda session: queue.release(
            session,
            job.id,
            job.fence,
            counts_as_failure=counts_as_failure,
            backoff_seconds=settings.retry_backoff_seconds if counts_as_failure or backoff else 0.0,
            reason=reason,
            max_failures=settings.max_attempts_without_checkpoint,
            evidence=evidence,
            failure=failure,
        )
    )
    logger.info("job requeued", reason=reason)
    fault_point("job.released")
    attempt.worker.wakeups.send(job.pool)


def _cause(error: Exception) -> str:
    if isinstance(error, OUTAGES):
        return "The database was unavailable"
    if isinstance(error, OSError) and error.strerror:
        return f"Operating system error on the worker: {error.strerror}"
    return "Internal worker error"
