"""One job from claim to end: claim → prepare → spawn → follow → conclude.

Boundary: the order of things. Every write goes through `Attempt`, under the fence. What goes wrong here
is infrastructure, costs one failure and is retried with backoff, unless it is `Refused` or a full disk.
"""

from __future__ import annotations

import errno
from pathlib import Path
from time import monotonic
from typing import Any

import structlog
from structlog.contextvars import bound_contextvars

from grpo_engine.process.fault_points import fault_point
from service.jobs.store import queue
from service.jobs.store.claimed import ClaimedJob
from service.platform.errors import Unavailable
from service.platform.ids import new_id
from service.platform.storage import StorageError
from worker.attempt.attempt import Attempt, Refused, Worker
from worker.attempt.conclude import conclude, fail, give_back, give_back_unstored
from worker.attempt.follow import follow
from worker.attempt.lease import Lease, Lost
from worker.attempt.prepare import prepare
from worker.attempt.run_directory import clean_up, run_folder
from worker.launchers.local import EngineProcess
from worker.launchers.warm_pool import Engines

logger = structlog.get_logger()
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
DISK_FULL = {
    "code": "disk_full",
    "message": "The worker's disk is full.",
    "hint": "Free space on the worker's disk and submit the job again.",
    "evidence": [],
}


def run_job(worker: Worker, engines: Engines | None = None) -> bool:
    """Claim the best job of the pool and see it through to its end here. False: nothing to do.

    Without `engines` none is kept warm.
    """
    claimed_at = monotonic()
    job = claim(worker)
    if job is None:
        return False
    fault_point("job.claimed")
    with (
        bound_contextvars(**about(worker, job)),
        Lease(worker.database, worker.settings, job, claimed_at) as lease,
    ):
        try:
            run(Attempt(worker, job, lease), engines or Engines(worker.settings, keep_warm=False))
        except Lost:
            logger.warning("job lost")
    return True


def about(worker: Worker, job: ClaimedJob) -> dict[str, Any]:
    """What each line about an attempt tells of it."""
    claimed = {"tenant": job.tenant, "job": job.id, "attempt": job.attempt, "fence": job.fence}
    return {**claimed, "worker": worker.name}


def claim(worker: Worker) -> ClaimedJob | None:
    """The job, under a lease and a new fence. None: nothing to do, or the storage does not let us in."""
    if not worker.may_claim():
        return None
    settings, database, offered = worker.settings, worker.database, worker.offered()
    opened = database.direct if settings.max_running_jobs is None else database.transaction
    with opened() as session:
        return queue.claim(
            session,
            pool=settings.pool,
            worker=worker.name,
            lease_seconds=settings.lease_seconds,
            capabilities=offered,
            gpus=settings.gpus,
            max_running=settings.max_running_jobs,
        )


def run(attempt: Attempt, engines: Engines) -> None:
    """The attempt, and what its errors mean. Raises Lost."""
    try:
        clean_up(attempt.worker.settings.runs_dir)
        with run_folder(attempt.folder):
            train(attempt, engines)
    except Refused as refused:
        fail(attempt, refused.failure)
    except Lost:
        raise
    except Unavailable as error:
        give_back(attempt, error.message, spend_failure=True)
    except StorageError as error:
        give_back_unstored(attempt, "The job's files were not fetched", error)
    except Exception as error:
        error_id = new_id("err")
        logger.exception("attempt broke off", error_id=error_id)
        if isinstance(error, OSError) and error.errno in NO_SPACE:
            fail(attempt, DISK_FULL)
        else:
            give_back(attempt, f"The worker broke off (its log says why: {error_id}).", spend_failure=True)


def train(attempt: Attempt, engines: Engines) -> None:
    """Prepare, spawn, follow, conclude. The next job's engine starts when this one's has started to train."""
    config = prepare(attempt)
    fault_point("job.prepared")
    engine = spawn(attempt, config, engines)
    try:
        ending = follow(attempt, engine, engines.prepare)
    finally:
        engine.close()
    conclude(attempt, ending)


def spawn(attempt: Attempt, config: Path, engines: Engines) -> EngineProcess:
    """Start the engine; from now on the lease guards it. Raises Lost."""
    engine = engines.start(["--config", str(config), "--run-dir", str(attempt.folder)], attempt.folder)
    fault_point("engine.spawned")
    try:
        attempt.lease.guard(engine)
    except Lost:
        engine.close()
        raise
    return engine
