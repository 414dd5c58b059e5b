"""Requeues expired leases and resends wake-ups: `python -m worker.sweeper`. Several may run at the same time.

The process also sends webhooks. With `--beside-worker` it also announces this machine's capabilities and runs
the sinks. Otherwise it announces nothing, because machines that announce themselves count as workers.
"""

import argparse
from dataclasses import replace
from functools import partial

import structlog
from sqlalchemy.orm import Session

from grpo_engine.process.fault_points import fault_point
from service.jobs.store import sweeping
from service.jobs.store.machines import announce, installed_sinks, log_sandbox_state, offered_to, this_machine
from service.jobs.store.transitions import LockedJob
from service.jobs.store.wakeups import Wakeups
from service.ops import helper_heartbeats
from service.ops.helper_heartbeats import CHAT, CLUSTER, SINKS, SWEEPER, WEBHOOKS, Heartbeat
from service.platform import logs
from service.platform.db import Database, connect
from service.settings import Settings, settings_or_exit
from worker.clock_jumps import ClockJumps
from worker.cluster.capacity import cluster_hosts, cluster_machine
from worker.sinks.keeper import Keeper
from worker.supervision import Flag, Helper, run_rounds, stop_flag, supervised
from worker.webhook_sender import THREADS, Sender

logger = structlog.get_logger()


def sweep_once(
    database: Database,
    wakeups: Wakeups,
    settings: Settings,
    *,
    jumps: ClockJumps | None = None,
    has_worker: bool = True,
) -> list[LockedJob]:
    """Sweep once; spare leases after a recent jump of the clock. Raises SQLAlchemyError."""
    swept: list[LockedJob] = []
    with database.transaction() as session:
        if jumps is None or not jumps.is_recent(session):
            swept = sweeping.sweep(
                session,
                backoff_seconds=settings.retry_backoff_seconds,
                max_failures=settings.max_attempts_without_checkpoint,
            )
    fault_point("sweep.committed")
    with database.transaction() as session:
        if has_worker:
            _announce(session, settings)
        helper_heartbeats.expect(session, settings.pool, expected_helpers(settings, has_worker=has_worker))
        pools = sweeping.due_pools(session)
    fault_point("sweep.wakeups_sent")
    for pool in pools:
        wakeups.send(pool)
    for found in swept:
        about = {"tenant": found.tenant, "attempt": found.attempt, "fence": found.fence}
        logger.warning("lease expired", job=found.id, state=found.state, worker=found.lease_owner, **about)
    return swept


def expected_helpers(settings: Settings, *, has_worker: bool) -> list[str]:
    """Names of the helpers that should run on this host."""
    beside_worker = [SINKS, *([CHAT] if settings.chat_models else [])]
    beside_worker += [CLUSTER] if settings.launcher == "ray" else []
    return [SWEEPER, WEBHOOKS, *(beside_worker if has_worker else [])]


def _announce(session: Session, settings: Settings) -> None:
    found = cluster_machine(settings) if settings.launcher == "ray" else this_machine(settings)
    if found is None:
        return
    offered = offered_to(session, found.capabilities)
    if offered != found.capabilities:
        logger.error("UNSAFE: GRPO_UNSAFE_GRADERS requires a single tenant; no capabilities are offered")
    machine = replace(found, capabilities=offered | installed_sinks() | cluster_hosts(settings))
    announce(session, helper_heartbeats.this_host(), settings.pool, machine)


def sweep_until(
    stopping: Flag, database: Database, wakeups: Wakeups, settings: Settings, *, has_worker: bool
) -> None:
    """Sweep every `sweep_seconds`, and record whether the worker's cluster is available."""
    cluster = Heartbeat(database, settings, CLUSTER) if has_worker and settings.launcher == "ray" else None
    jumps = ClockJumps(settings)

    def sweep() -> None:
        sweep_once(database, wakeups, settings, jumps=jumps, has_worker=has_worker)
        if cluster is not None and cluster_machine(settings) is not None:
            cluster.beat()

    run_rounds(stopping, Heartbeat(database, settings, SWEEPER), sweep, settings.sweep_seconds)
    for helper in expected_helpers(settings, has_worker=has_worker):
        # each removes its own row as well, but not one that is stopped while it starts
        Heartbeat(database, settings, helper).leave()


def maintenance(
    database: Database, wakeups: Wakeups, settings: Settings, *, has_worker: bool = True
) -> dict[str, Helper]:
    """The sweeper and the helpers of the same process, by name."""
    sweep = partial(sweep_until, database=database, wakeups=wakeups, settings=settings, has_worker=has_worker)
    sender = Sender(database, settings)
    helpers: dict[str, Helper] = {SWEEPER: sweep}
    helpers |= {f"{WEBHOOKS}-{number}": sender.send_until for number in range(THREADS)}
    if has_worker:
        log_sandbox_state(settings)
        helpers[SINKS] = Keeper(database, settings).keep_until
    return helpers


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="worker.sweeper", description=__doc__)
    parser.add_argument("--beside-worker", action="store_true", help="a worker runs on this machine")
    given = parser.parse_args()
    settings = settings_or_exit()
    logs.own_process(settings.log_level)
    stopping = stop_flag()
    logger.info("sweeping", every_seconds=settings.sweep_seconds, beside_worker=given.beside_worker)
    database = connect(settings)
    helpers = maintenance(database, Wakeups(settings), settings, has_worker=given.beside_worker)
    with supervised(helpers, stopping):
        stopping.wait()
    database.engine.dispose()


if __name__ == "__main__":
    main()
