"""One job from claim to end: claim → reserve → download → prepare → start → follow → conclude.

Boundary: the order of the steps. Every write goes through `Attempt`, under the fence. Errors outside the
engine are errors of the infrastructure. Except for `Refused` and a full disk, they count as one failure and
the job is retried with backoff.
"""

from contextlib import closing
from dataclasses import replace
from time import monotonic
from typing import Any

import structlog
from structlog.contextvars import bound_contextvars

from grpo_engine.process.fault_points import fault_point
from service.jobs.store import claiming
from service.jobs.store.claiming import ClaimedJob
from service.jobs.store.machines import gpu_memory_gb
from service.platform.ids import new_id
from worker.attempt.attempt import Attempt, Refused
from worker.attempt.conclude import conclude, conclude_error
from worker.attempt.follow import Ending, await_place, follow
from worker.attempt.hub_model import await_model
from worker.attempt.lease import Lease, Lost
from worker.attempt.log_stream import LogStream
from worker.attempt.prepare import prepare
from worker.attempt.reserve import reserved_place
from worker.attempt.worker import Worker
from worker.cluster.plan import ClusterLost
from worker.launchers.base import Place
from worker.launchers.gpu_reservation import Reservation
from worker.launchers.run_directory import clean_up, run_directory
from worker.launchers.warm_pool import WarmPool

logger = structlog.get_logger()


def run_job(worker: Worker, engines: WarmPool | None = None) -> bool:
    """Claim the best job of the pool and run it to its end on this machine. False: no job is queued.

    If `engines` is None, no engine is kept warm.
    """
    with worker.gpus.reserve() as gpus:
        claimed = claim(worker, gpus)
        if claimed is None:
            return False
        job, claimed_at = claimed
        fault_point("job.claimed")
        with (
            bound_contextvars(**log_fields(worker, job)),
            Lease(worker.database, worker.settings, job, claimed_at) as lease,
        ):
            logger.info("job started", model=job.model)
            try:
                run_attempt(Attempt(worker, job, lease, gpus), engines or WarmPool(worker.settings))
            except Lost:
                logger.warning("job lost")
    return True


def run_attempt(attempt: Attempt, engines: WarmPool) -> None:
    """Run the engine in its own directory and record its end, or the error. Raises Lost."""
    try:
        clean_up(attempt.worker.settings.runs_dir)
        with run_directory(attempt.folder):
            run_engine(attempt, engines)
    except Lost:
        raise
    except Exception as error:
        error_id = new_id("err")
        if not isinstance(error, Refused | ClusterLost):
            logger.exception("attempt ended by an error", error_id=error_id)
        conclude_error(attempt, error, error_id)


def run_engine(attempt: Attempt, engines: WarmPool) -> None:
    """Reserve, download the model, prepare, start, follow, conclude. Raises Lost."""
    with reserved_place(attempt, engines) as place:
        attempt = replace(attempt, place=place)
        with closing(LogStream(attempt)) as log:
            ending = await_place(attempt, place) or await_model(attempt)
            ending = ending or follow_engine(attempt, place, engines, log)
        conclude(attempt, ending)


def follow_engine(attempt: Attempt, place: Place, engines: WarmPool, log: LogStream) -> Ending:
    """Prepare, start, follow. Once this engine trains, the next job's engine is warmed up. Raises Lost."""
    prepare(attempt)
    fault_point("job.prepared")
    with closing(place.start()) as engine:
        fault_point("engine.spawned")
        attempt.lease.guard(engine)
        return follow(attempt, engine, log, on_step=engines.warm_up)


def log_fields(worker: Worker, job: ClaimedJob) -> dict[str, Any]:
    """Fields of each log line of an attempt."""
    claimed = {"tenant": job.tenant, "job": job.id, "attempt": job.attempt, "fence": job.fence}
    return {**claimed, "worker": worker.name}


def claim(worker: Worker, gpus: Reservation) -> tuple[ClaimedJob, float] | None:
    """Claim a job, with a lease and a new fence, and reduce the reservation to its GPUs.

    Returns the job and the monotonic time just before the claim, after the trial of the GPUs. None: the
    reserved GPUs suffice for no queued job, or this worker may not claim.
    """
    settings, usable = worker.settings, worker.gpu_check.working(gpus)
    if not worker.may_claim() or (worker.gpus.names and len(usable) < settings.runtime.ranks):
        return None
    offered, claimed_at = worker.offered_capabilities(), monotonic()
    with worker.database.connection() as session:
        job = claiming.claim(
            session,
            pool=settings.pool,
            worker=worker.name,
            lease_seconds=settings.lease_seconds,
            capabilities=offered,
            gpus=len(usable),
            all_gpus=worker.gpu_check.num_not_failing(worker.gpus.names),
            gpu_memory_gb=gpu_memory_gb(settings),
            max_running=settings.max_running_jobs,
        )
    worker.obstacle.note(None)
    if job is None:
        return None
    wanted = sum(job.resources.get(name, 0) for name in ("gpus", "sampler_gpus"))
    gpus.keep(usable[: wanted or job.required_gpus or settings.runtime.ranks])
    return job, claimed_at
