"""Each helper of a worker is restarted when it ends, and a silent one is reported."""

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from service.app import create_app
from service.ops.doctor import stores
from service.ops.doctor.findings import Level
from service.ops.helper_heartbeats import expect, helpers_seen
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.tables.workers import WorkerHelper, WorkerHost
from service.settings import Settings
from tests.conftest import settings_for
from tests.support.chat_server import Reply, ScriptedServer
from tests.support.servers import Redis, wait_until
from tests.support.waiting import running
from tests.support.webhook_receiver import ALLOWED, deliveries, make_due, register
from tests.worker.conftest import Processes
from tests.worker.jobs import cancel, insert_job, read_job
from worker import healthcheck, supervision
from worker.attempt.worker import Worker
from worker.cluster.capacity import Capacity, write_capacity
from worker.serving.chat import answer_until
from worker.serving.model_keeper import ModelKeeper
from worker.sinks.keeper import Keeper
from worker.supervision import supervised
from worker.sweeper import expected_helpers, maintenance
from worker.webhook_sender import Sender

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(
        update={"chat_models": 1, "chat_module": "tests.support.fake_serving", "allowed_hosts": ALLOWED}
    )


@pytest.fixture
def celery(settings: Settings, redis_server: Redis) -> Iterator[Processes]:
    broker = {"broker_url": redis_server.url, "database_url": settings.sqlalchemy_url}
    processes = Processes(settings_for(**settings.model_dump() | broker))
    yield processes
    processes.close()


def only_child(pid: int, module: str) -> int | None:
    """Its id; None while it starts (a program that starts another one has no command line for a moment)."""
    found = running(pid, module)
    return found[0] if len(found) == 1 else None


def kill_helper(main: int, module: str, *, spared: str) -> None:
    """Kill one helper of a Celery worker and wait until it is restarted; the other one must not restart."""
    pid = wait_until(lambda: only_child(main, module), 120)
    other = wait_until(lambda: only_child(main, spared), 120)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: only_child(main, module) not in (None, pid), 30, f"{module} is restarted")
    assert wait_until(lambda: only_child(main, spared)) == other


def helpers_recorded(database: Database) -> set[str]:
    with database.reading() as session:
        return set(session.scalars(select(WorkerHelper.helper)))


def silent_helpers(database: Database) -> set[str]:
    with database.reading() as session:
        return {seen.helper for seen in helpers_seen(session, 0) if seen.is_silent}


def age_heartbeat(database: Database, helper: str, seconds: float) -> None:
    with database.transaction() as session:
        aged = update(WorkerHelper).where(WorkerHelper.helper == helper)
        session.execute(aged.values(seen_at=db_now() - seconds))


def lost_job(database: Database) -> str:
    """A running job whose lease has expired."""
    return insert_job(database, state="running", fence=1, attempt=1, lease_expires_at=1.0)


def test_each_helper_process_of_a_celery_worker_is_restarted_when_it_is_killed(
    celery: Processes, database: Database
) -> None:
    options = ["--loglevel", "INFO", "--without-mingle", "--without-gossip"]
    main = celery.start("-m", "celery", "-A", "worker.app", "worker", *options)
    kill_helper(main.pid, "worker.sweeper", spared="worker.serving.chat")
    kill_helper(main.pid, "worker.serving.chat", spared="worker.sweeper")
    assert celery.logs().count('"helper ended"') == 2
    swept = lost_job(database)
    wait_until(lambda: read_job(database, swept).fence > 1, 120, "the new sweeper sweeps")
    wait_until(lambda: helpers_recorded(database) == {"sweeper", "webhooks", "sinks", "chat"}, 120)
    main.terminate()
    assert main.wait(30) == 0
    wait_until(lambda: not helpers_recorded(database), 120, "the helpers remove their records")


def test_a_sweeper_that_raises_logs_the_cause_once_and_continues(
    processes: Processes, database: Database
) -> None:
    first = lost_job(database)
    process = processes.start("-m", "worker.sweeper", fault="sweep.committed:raise")
    wait_until(lambda: read_job(database, first).fence > 1, 120)
    second = lost_job(database)
    wait_until(lambda: read_job(database, second).fence > 1, 120, "the restarted sweeper sweeps")
    assert process.poll() is None
    (line,) = [line for line in processes.logs().splitlines() if '"helper ended"' in line]
    assert '"helper": "sweeper"' in line
    assert "InjectedFault: sweep.committed" in line


def test_a_webhook_sender_that_raises_is_restarted(
    processes: Processes, database: Database, settings: Settings
) -> None:
    with ScriptedServer(lambda _recorded: Reply(status=200)) as server:
        register(database, settings, server.url)
        insert_and_cancel(database)
        processes.start("-m", "worker.sweeper", fault="webhook.sent:raise")
        wait_until(lambda: '"helper ended"' in processes.logs(), 120)
        make_due(database)
        wait_until(lambda: deliveries(database)[0].state == "delivered", 120)
    assert '"helper": "webhooks-' in processes.logs()


def insert_and_cancel(database: Database) -> None:
    job_id = insert_job(database)
    cancel(database, job_id)


ROUNDS = {
    "sinks": (Keeper, "check_once"),
    "chat": (ModelKeeper, "round"),
    "webhooks": (Sender, "send_one"),
}


@pytest.mark.parametrize("helper", ROUNDS)
def test_a_helper_thread_that_raises_is_restarted(
    helper: str, worker: Worker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name = ROUNDS[helper]
    run_round: Callable[..., object] = getattr(kind, name)
    failed = threading.Event()

    def fail_once(*arguments: object) -> object:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("no round")
        return run_round(*arguments)

    monkeypatch.setattr(kind, name, fail_once)
    monkeypatch.setattr(supervision, "FIRST_BACKOFF_SECONDS", 0.01)
    helpers = maintenance(worker.database, worker.wakeups, worker.settings)
    helpers["chat"] = partial(answer_until, worker=worker)
    del helpers["sweeper"]  # it adds rows for all helpers
    with supervised(helpers, worker.draining):
        wait_until(lambda: failed.is_set() and helper in helpers_recorded(database), 120)
        worker.draining.set()


def test_a_sweeper_reports_the_cluster_while_it_is_seen_and_removes_its_row_at_the_end(
    database: Database, settings: Settings, processes: Processes
) -> None:
    processes.start("-m", "worker.sweeper", "--beside-worker", environment={"GRPO_LAUNCHER": "ray"})
    wait_until(lambda: "cluster" in helpers_recorded(database), 120, "the cluster is expected")
    age_heartbeat(database, "cluster", 200)
    write_capacity(settings, Capacity(hosts=2, gpus=4, gpu_memory_gb=0, capabilities=(), at=time.time()))
    wait_until(lambda: not silent_helpers(database) & {"cluster"}, 120, "it is seen")
    (sweeper,) = processes.started
    sweeper.terminate()
    assert sweeper.wait(30) == 0
    assert "cluster" not in helpers_recorded(database)


def test_a_state_of_the_cluster_that_cannot_be_written_leaves_no_file(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_paths: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    before = sorted(settings.home.iterdir())
    with pytest.raises(OSError, match="No space left"):
        write_capacity(settings, Capacity(hosts=2, gpus=4, gpu_memory_gb=0, capabilities=(), at=time.time()))
    assert sorted(settings.home.iterdir()) == before


def test_a_frozen_worker_is_unhealthy_beside_one_that_shares_its_home(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRPO_HOME", str(settings.home))
    monkeypatch.setattr("sys.argv", ["worker.healthcheck"])
    settings.home.mkdir(parents=True, exist_ok=True)
    settings.alive_file.touch()
    os.utime(settings.alive_file, (0, 0))
    with monkeypatch.context() as other:
        other.setattr("socket.gethostname", lambda: "another-container")
        with pytest.raises(SystemExit, match="no worker has started here yet"):
            healthcheck.main()
        settings.alive_file.touch()
        healthcheck.main()
        assert capsys.readouterr().out.startswith("the worker's main loop last ran ")
    with pytest.raises(SystemExit, match="the worker's main loop last ran"):
        healthcheck.main()


def test_a_silent_helper_is_reported_by_doctor_and_readyz(
    database: Database, settings: Settings, processes: Processes
) -> None:
    processes.start("-m", "worker.sweeper", "--beside-worker")  # chat is expected but does not run
    wait_until(lambda: helpers_recorded(database) == set(expected_helpers(settings, has_worker=True)), 120)
    with TestClient(create_app(settings)) as client:
        assert client.get("/readyz").json()["status"] == "ready"
        age_heartbeat(database, "chat", 130)
        answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["status"]) == (200, "degraded")
    silent = re.match(r"chat not seen for (\d+) s", answer.json()["checks"]["helpers"])
    assert silent is not None
    assert 130 <= int(silent[1]) < 600
    findings = [each for each in stores.database(settings) if each.check == "helpers"]
    (found,) = findings
    assert (found.level, found.found.split(" on ")[0]) == (Level.WARNING, "chat")


def test_a_recovered_helper_is_not_reported(
    database: Database, settings: Settings, processes: Processes
) -> None:
    with database.transaction() as session:
        expect(session, settings.pool, ["sweeper"])
    age_heartbeat(database, "sweeper", 130)
    processes.start("-m", "worker.sweeper")

    def is_ok() -> bool:
        return [each.level for each in stores.database(settings) if each.check == "helpers"] == [Level.OK]

    wait_until(is_ok, 120, "the next heartbeat")


def test_heartbeats_of_old_hosts_are_deleted(
    database: Database, settings: Settings, processes: Processes
) -> None:
    with database.transaction() as session:
        gone = {"host": "gone", "pool": "default", "helper": "sweeper"}
        session.add(WorkerHelper(**gone, seen_at=1.0))
    processes.start("-m", "worker.sweeper")

    def hosts() -> int:
        with database.reading() as session:
            named = select(func.count()).select_from(WorkerHelper).where(WorkerHelper.host == "gone")
            return session.scalar(named) or 0

    wait_until(lambda: hosts() == 0, 120)


@pytest.mark.parametrize(("options", "num_machines"), [((), 0), (("--beside-worker",), 1)])
def test_a_sweeper_without_a_worker_announces_no_machine(
    database: Database,
    settings: Settings,
    processes: Processes,
    options: tuple[str, ...],
    num_machines: int,
) -> None:
    earlier = insert_job(database, state="running", fence=1, attempt=1, lease_expires_at=1.0)
    processes.start("-m", "worker.sweeper", *options)
    wait_until(lambda: read_job(database, earlier).state == "queued", 120)
    later = insert_job(database, state="running", fence=1, attempt=1, lease_expires_at=1.0)
    wait_until(lambda: read_job(database, later).state == "queued", 120)
    with database.reading() as session:
        assert session.scalar(select(func.count()).select_from(WorkerHost)) == num_machines
