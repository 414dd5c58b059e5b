"""The polling worker, the only kind in the embedded mode. Each slot and each helper has a thread."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

from sqlalchemy.exc import SQLAlchemyError

from service.ops.helper_heartbeats import CHAT, CLUSTER
from service.platform.db import reason_of
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker
from worker.launchers.warm_pool import WarmPool
from worker.serving.chat import answer_until
from worker.supervision import run_process, supervised
from worker.sweeper import maintenance

watch_cluster = partial(run_process, ["worker.cluster.watch"])
"""The helper that watches the Ray cluster."""


def work(worker: Worker) -> None:
    """Run jobs and helpers until drained."""
    helpers = maintenance(worker.database, worker.wakeups, worker.settings)
    if worker.settings.chat_models:
        helpers[CHAT] = partial(answer_until, worker=worker)
    if worker.settings.launcher == "ray":
        helpers[CLUSTER] = watch_cluster
    num_others = worker.settings.slots - 1
    with supervised(helpers, worker.draining), ThreadPoolExecutor(max(1, num_others), "slot") as threads:
        others = [threads.submit(run_slot, worker) for _ in range(num_others)]
        run_slot(worker)
    for slot in others:
        slot.result()


def run_slot(worker: Worker) -> None:
    """Run jobs one by one until drained. An error drains the worker's other slots."""
    try:
        with closing(WarmPool(worker.settings, keep_warm=True)) as engines:
            while not worker.draining.is_set():
                worker.touch()
                if not try_job(worker, engines):
                    engines.warm_up()
                    worker.draining.wait(worker.settings.poll_seconds)
    finally:
        worker.draining.set()


def try_job(worker: Worker, engines: WarmPool | None = None) -> bool:
    """Run a job. False: no job is queued, or the database is unavailable."""
    try:
        return run_job(worker, engines)
    except SQLAlchemyError as error:
        worker.obstacle.note(reason_of(error))
        return False
