"""The Celery worker of production: `celery -A worker.app worker`. Celery is its doorbell, no more.

A wake-up names a pool; the pool child then claims and runs jobs until none is left. The child lives on, with
an engine that waits for its next job. SIGTERM (Celery's warm shutdown) sets a flag that the child shares, so
that it drains and does not train on for days. Beside it run one process that sweeps and one that answers
requests to talk to a model, so that a deployment with a worker has both.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from celery import Celery, signals

from service.jobs.store.doorbell import TASK, celery_settings, queue_name
from service.jobs.store.machines import of_this_machine
from service.jobs.store.wakeups import refuse_eviction
from service.platform import logs
from service.settings import Settings
from worker.attempt.attempt import Worker, worker_name
from worker.launchers import launch
from worker.launchers.warm_pool import Engines
from worker.loop import try_job


class SharedFlag:
    """One byte shared with forked children; without a lock, so a killed child cannot keep it."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    def set(self) -> None:
        self._byte[0] = 1

    def is_set(self) -> bool:
        return self._byte[0] == 1

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not self.is_set() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.is_set()


def make_app(settings: Settings) -> Celery:
    """The Celery application. Raises RuntimeError without a broker: then workers poll."""
    if settings.broker_url is None:
        raise RuntimeError("celery needs GRPO_BROKER_URL; without a broker run `python -m worker`")
    celery = Celery("grpo")
    celery.conf.update(celery_settings(settings.broker_url.get_secret_value()))
    celery.conf.update(
        task_default_queue=queue_name(settings.pool),
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_concurrency=1,
        worker_send_task_events=False,
        worker_redirect_stdouts=False,
    )
    return celery


settings = Settings()
draining = SharedFlag()
app = make_app(settings)
BESIDE = (["worker.sweeper", "--beside-worker"], ["worker.serving.chat"])
"""Modules with their arguments: processes that a worker has beside it."""
beside: list[subprocess.Popen[bytes]] = []
"""At most one of each, started by the main process."""


@cache
def opened_worker(pid: int) -> Worker:
    """This process's worker: a forked child must not share connections with its parent."""
    return Worker.open(settings, worker_name(), draining)


@cache
def opened_engines(pid: int) -> Engines:
    """This process's engines: they die with the process that started them."""
    return Engines(settings, keep_warm=settings.warm_engine)


@app.task(name=TASK)
def wake(pool: str) -> None:
    """Run the pool's jobs, one after the other, until none is left."""
    worker = opened_worker(os.getpid())
    worker = replace(worker, settings=settings.model_copy(update={"pool": pool}))
    engines = opened_engines(os.getpid())
    while not draining.is_set() and try_job(worker, engines):
        pass
    if not draining.is_set():
        engines.prepare()


@signals.setup_logging.connect
def log_our_way(**_signal: Any) -> None:
    """Celery then leaves the logging of this process and its children to us."""
    logs.own_process(settings.log_level)


@signals.celeryd_init.connect
def print_no_banner(instance: Any, **_signal: Any) -> None:
    """All that it prints is a line of JSON, warnings before its own setup too."""
    instance.quiet = True
    log_our_way()


@signals.worker_process_init.connect
def start_ahead(**_signal: Any) -> None:
    """The pool child has just been forked and has nothing to do yet."""
    opened_engines(os.getpid()).prepare()


@signals.worker_process_shutdown.connect
def end_waiting_engine(**_signal: Any) -> None:
    """The pool child ends; a killed one's engine is killed by the kernel."""
    opened_engines(os.getpid()).close()


@signals.worker_init.connect
def attack_sandbox(**_signal: Any) -> None:
    """Before the pool child is forked, which may take four seconds to come up and knows the answer then."""
    of_this_machine()


@signals.worker_init.connect
def refuse_evicting_broker(**_signal: Any) -> None:
    """An evicting Redis forgets queues and bindings; production does not start with one."""
    try:
        refuse_eviction(settings)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error


@signals.worker_shutting_down.connect
def drain(**_signal: Any) -> None:
    """SIGTERM reached Celery's main process: its child lets go after a checkpoint."""
    draining.set()


@signals.heartbeat_sent.connect
def touch(**_signal: Any) -> None:
    """Liveness of the main process."""
    settings.home.mkdir(parents=True, exist_ok=True)
    settings.alive_file.touch()


@signals.worker_ready.connect
def start_beside(**_signal: Any) -> None:
    """What is beside this worker; it dies with it. Celery says "ready" again after each reconnect."""
    if not any(process.poll() is None for process in beside):
        launcher = [sys.executable, "-I", "-S", str(Path(launch.__file__)), str(os.getpid())]
        beside[:] = [subprocess.Popen([*launcher, sys.executable, "-m", *module]) for module in BESIDE]


@signals.worker_shutdown.connect
def stop_beside(**_signal: Any) -> None:
    """Ended before their parent, so that nothing is left to reap."""
    for process in beside:
        process.terminate()
    for process in beside:
        process.wait()
