"""The production worker: `celery -A worker.app worker`. Celery only delivers wake-ups.

A wake-up names a pool. Celery's pool child claims and runs the pool's jobs until none is left, and then keeps
an engine warm. SIGTERM (Celery's warm shutdown) sets a flag that the child shares, so that the running
job is released after a checkpoint. The main process also supervises the helper processes.
"""

import os
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from typing import Any

from celery import Celery, signals

from service.jobs.store.machines import of_this_machine
from service.jobs.store.wakeups import TASK, celery_settings, queue_name, refuse_eviction
from service.ops.helper_heartbeats import CHAT, CLUSTER, SWEEPER
from service.platform import logs
from service.settings import Settings, settings_or_exit
from worker.attempt.worker import Worker, worker_name
from worker.launchers.warm_pool import WarmPool
from worker.loop import try_job, watch_cluster
from worker.supervision import Helper, StopFlag, run_process, supervised


def make_app(settings: Settings) -> Celery:
    """The Celery application. Raises RuntimeError if there is no broker."""
    if settings.broker_url is None:
        raise RuntimeError("celery needs GRPO_BROKER_URL; without a broker run `python -m worker`")
    celery = Celery("grpo")
    celery.conf.update(celery_settings(settings.broker_url.get_secret_value()))
    celery.conf.update(
        task_default_queue=queue_name(settings.pool),
        # a Redis that is read-only during a failover is an outage, too
        broker_channel_error_retry=True,
        # concerns late acknowledgement only, which is off; unset, each reconnection logs a warning
        worker_cancel_long_running_tasks_on_connection_loss=True,
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_concurrency=settings.slots,
        worker_send_task_events=False,
        worker_redirect_stdouts=False,
    )
    return celery


settings = settings_or_exit()
draining = StopFlag()
app = make_app(settings)
stopping = StopFlag()
"""Set when Celery's main process ends; the helpers of this worker then end too."""


@cache
def opened_worker(pid: int) -> Worker:
    """The worker of one process, because a forked child must not share connections with its parent."""
    return Worker.open(settings, worker_name(), draining)


@cache
def opened_engines(pid: int) -> WarmPool:
    """The engines of one process, which die with it."""
    return WarmPool(settings, keep_warm=True)


@cache
def running_helpers() -> ExitStack:
    """Starts the main process's helpers, once. Closing the stack waits for them."""
    helpers: dict[str, Helper] = {SWEEPER: partial(run_process, ["worker.sweeper", "--beside-worker"])}
    if settings.chat_models:
        helpers[CHAT] = partial(run_process, ["worker.serving.chat"])
    if settings.launcher == "ray":
        helpers[CLUSTER] = watch_cluster
    running = ExitStack()
    running.enter_context(supervised(helpers, stopping))
    return running


@app.task(name=TASK)
def wake(pool: str) -> None:
    """Run the pool's jobs one by one until none is left."""
    worker = opened_worker(os.getpid())
    worker = replace(worker, settings=settings.model_copy(update={"pool": pool}))
    engines = opened_engines(os.getpid())
    while not draining.is_set() and try_job(worker, engines):
        pass
    if not draining.is_set():
        engines.warm_up()


@signals.setup_logging.connect
def configure_logging(**_signal: Any) -> None:
    """Replace Celery's own logging in this process and its children."""
    logs.own_process(settings.log_level)


@signals.celeryd_init.connect
def print_no_banner(instance: Any, **_signal: Any) -> None:
    """Print no banner, and make warnings JSON lines even before Celery sets up logging."""
    instance.quiet = True
    configure_logging()


@signals.worker_process_init.connect
def warm_first_engine(**_signal: Any) -> None:
    """Start the engine of the first job while the new pool child is idle."""
    opened_engines(os.getpid()).warm_up()


@signals.worker_process_shutdown.connect
def end_waiting_engine(**_signal: Any) -> None:
    """End the engine with the pool child. If the child is killed, the kernel kills the engine."""
    opened_engines(os.getpid()).close()


@signals.worker_init.connect
def check_machine(**_signal: Any) -> None:
    """Check the broker and the sandbox. This precedes the pool child, which has only four seconds to start.

    A Redis that evicts keys loses queues and bindings, so a production worker does not start with one.
    """
    of_this_machine()
    try:
        refuse_eviction(settings)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error


@signals.worker_shutting_down.connect
def drain(**_signal: Any) -> None:
    """On SIGTERM, let the pool child release its job after a checkpoint."""
    draining.set()


@signals.heartbeat_sent.connect
def touch(**_signal: Any) -> None:
    """Touch the file that `worker.healthcheck` reads."""
    settings.home.mkdir(parents=True, exist_ok=True)
    settings.alive_file.touch()


@signals.worker_ready.connect
def start_helper_processes(**_signal: Any) -> None:
    """Start the helpers, once, although Celery sends this signal again after each reconnect."""
    running_helpers()


@signals.worker_shutdown.connect
def stop_helper_processes(**_signal: Any) -> None:
    """End the helpers before this process ends, so that none is left to reap."""
    stopping.set()
    running_helpers().close()
