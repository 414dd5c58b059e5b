"""Virtual workers in several processes that claim jobs, hold them and finish them.

Each worker claims, renews its lease once and finishes, through the functions that real workers call. So a
thousand workers hold a thousand jobs at any time. Boundary: no engine runs, and nothing is recorded.
"""

import multiprocessing
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from sqlalchemy import Integer, and_, cast, func, select

from bench.service.client import percentile
from service.jobs.model.states import JobState
from service.jobs.store import claiming, queue
from service.platform.db import Database, connect
from service.platform.tables.core import Job, JobEvent
from service.settings import Settings

NUM_PROCESSES = 2
THREADS_PER_PROCESS = 4
LEASE_SECONDS = 600.0
GPUS = 8
EVENTS_PER_JOB = 4
"""Entries in a finished job's history: created, queued, started, succeeded."""


@dataclass
class VirtualWorker:
    """One worker and the job it holds."""

    name: str
    job_id: str | None = None
    fence: int = 0
    is_renewed: bool = False


@dataclass
class Share:
    """Results of one process's workers."""

    claimed: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Duration of each transaction."""
    started_at: float = 0.0
    """Time of the start, by the monotonic clock."""
    ended_at: float = 0.0


def measure_life_cycles(
    database: Database, settings: Settings, num_workers: int, num_jobs: int
) -> dict[str, float]:
    """Claim, renew and finish all queued jobs. Raises AssertionError if one was claimed twice."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in range(NUM_PROCESSES)]
    names = [f"virtual-{number}" for number in range(num_workers)]
    shares_of_names = [names[first::NUM_PROCESSES] for first in range(NUM_PROCESSES)]
    processes = [
        context.Process(target=_work, args=(settings, own, theirs))
        for own, (_, theirs) in zip(shares_of_names, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    for ours, _ in pipes:
        ours.recv()
    for ours, _ in pipes:
        ours.send("go")
    shares: list[Share] = [ours.recv() for ours, _ in pipes]
    for process in processes:
        process.join()
    _check(database, shares, num_jobs)
    return _figures(shares, num_jobs)


def _check(database: Database, shares: Sequence[Share], num_jobs: int) -> None:
    claimed = [job_id for share in shares for job_id in share.claimed]
    assert len(claimed) == num_jobs, f"{len(claimed)} claims of {num_jobs} jobs"
    assert len(set(claimed)) == num_jobs, "a job was claimed twice"
    is_once = and_(Job.state == JobState.SUCCEEDED.value, Job.fence == 1, Job.attempt == 1)
    with database.reading() as session:
        num_wrong = session.scalar(select(func.count()).select_from(Job).where(~is_once))
        history = session.execute(select(func.count(), func.max(cast(JobEvent.sequence, Integer)))).one()
    assert num_wrong == 0, f"{num_wrong} jobs were not finished exactly once"
    assert tuple(history) == (EVENTS_PER_JOB * num_jobs, EVENTS_PER_JOB), f"history is {tuple(history)}"


def _figures(shares: Sequence[Share], num_jobs: int) -> dict[str, float]:
    seconds = max(share.ended_at for share in shares) - min(share.started_at for share in shares)
    transactions = sorted(value for share in shares for value in share.seconds)
    return {
        "jobs": num_jobs,
        "seconds": round(seconds, 2),
        "life_cycles_per_second": round(num_jobs / seconds, 1),
        "transactions_per_second": round(len(transactions) / seconds, 1),
        "transaction_p50_ms": round(1000 * percentile(transactions, 0.5), 2),
        "transaction_p99_ms": round(1000 * percentile(transactions, 0.99), 2),
        "double_claims": 0,
    }


def _work(settings: Settings, names: list[str], pipe: Connection) -> None:
    """Run a process's workers until the queue is empty."""
    database = connect(settings)
    share, lock = Share(), threading.Lock()
    crews = [names[first::THREADS_PER_PROCESS] for first in range(THREADS_PER_PROCESS)]
    pipe.send("ready")
    pipe.recv()
    share.started_at = time.monotonic()
    threads = [threading.Thread(target=_run_crew, args=(database, crew, share, lock)) for crew in crews]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    share.ended_at = time.monotonic()
    database.engine.dispose()
    pipe.send(share)


def _run_crew(database: Database, names: Sequence[str], share: Share, lock: threading.Lock) -> None:
    """Run one thread's workers in turn; each turn is one transaction."""
    waiting = deque(VirtualWorker(name) for name in names)
    claimed, seconds = [], []
    while waiting:
        worker = waiting.popleft()
        started = time.monotonic()
        is_free = worker.job_id is None
        if _take_turn(database, worker):
            waiting.append(worker)
        seconds.append(time.monotonic() - started)
        if is_free and worker.job_id is not None:
            claimed.append(worker.job_id)
    with lock:
        share.claimed += claimed
        share.seconds += seconds


def _take_turn(database: Database, worker: VirtualWorker) -> bool:
    """Run the worker's next transaction. False: no job is left."""
    if worker.job_id is None:
        with database.connection() as session:
            job = claiming.claim(
                session, pool="default", worker=worker.name, lease_seconds=LEASE_SECONDS, gpus=GPUS
            )
        if job is None:
            return False
        worker.job_id, worker.fence, worker.is_renewed = job.id, job.fence, False
    elif not worker.is_renewed:
        with database.connection() as session:
            state = queue.renew(session, worker.job_id, worker.fence, lease_seconds=LEASE_SECONDS)
        assert state is JobState.RUNNING, f"{worker.job_id} is {state}"
        worker.is_renewed = True
    else:
        with database.connection() as session:
            assert queue.finish(session, worker.job_id, worker.fence, JobState.SUCCEEDED), worker.job_id
        worker.job_id = None
    return True
