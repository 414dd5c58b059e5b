"""The warm engine: used once, replaced, dropped if it died, never left running."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from service.platform.db import Database
from service.platform.storage import Storage
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.support.servers import wait_until
from tests.support.waiting import is_alive, waiting_engines
from tests.worker.conftest import ROOT, Processes, engine_pids
from tests.worker.jobs import read_job
from tests.worker.outcomes import expected_weights, weights
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker
from worker.launchers import run_directory
from worker.launchers.local import EngineProcess
from worker.launchers.warm_pool import WarmPool

pytestmark = on_sqlite  # nothing here depends on the database

Submit = Callable[..., str]
WaitFor = Callable[..., None]


@pytest.fixture
def settings(settings: Settings) -> Settings:
    # not forked: the tests look at the engine's own folder
    return settings.model_copy(update={"warm_engine": True, "engine_python": Path(sys.executable)})


@pytest.fixture
def engines(worker: Worker) -> Iterator[WarmPool]:
    with closing(WarmPool(worker.settings, keep_warm=True)) as engines:
        yield engines


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Process ids of the engines that jobs ran on."""
    pids: list[int] = []
    start = WarmPool.start

    def noting(self: WarmPool, *arguments: object) -> EngineProcess:
        engine = start(self, *arguments)  # type: ignore[arg-type]
        pids.append(engine.pid)
        return engine

    monkeypatch.setattr(WarmPool, "start", noting)
    return pids


def prepared(engines: WarmPool) -> int:
    """Process id of the warm engine."""
    engines.warm_up()
    assert engines.warm_pid is not None
    return engines.warm_pid


def test_the_warm_engine_runs_the_next_job(
    worker: Worker,
    engines: WarmPool,
    used: list[int],
    database: Database,
    storage: Storage,
    submit: Submit,
) -> None:
    waiting = prepared(engines)
    job_id = submit()
    run_job(worker, engines)
    assert used == [waiting]
    assert read_job(database, job_id).state == "succeeded"
    assert weights(database, storage, job_id) == expected_weights()


def test_every_job_has_its_own_engine(
    worker: Worker, engines: WarmPool, used: list[int], database: Database, submit: Submit
) -> None:
    first = prepared(engines)
    jobs = [submit(), submit()]
    run_job(worker, engines)
    second = engines.warm_pid
    assert second is not None
    assert not is_alive(first)
    assert engine_pids(worker.settings) == []
    run_job(worker, engines)
    assert used == [first, second]
    assert engines.warm_pid not in (None, first, second)
    assert [read_job(database, job_id).state for job_id in jobs] == ["succeeded", "succeeded"]


def test_output_of_a_warm_engine_starts_the_log_of_its_job(
    worker: Worker, engines: WarmPool, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(engines)
    monkeypatch.setattr(run_directory, "KEPT_LOG_LINES", 1)
    job_id = submit()
    run_job(worker, engines)
    log = worker.settings.runs_dir / job_id / "1" / "engine.log"
    assert log.read_text() == "fake engine starts\n"


def test_a_warm_engine_has_no_folder_and_no_secret(
    engines: WarmPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_DATABASE_URL", "postgresql://secret")
    waiting = prepared(engines)
    wait_until(lambda: b"--warm" in Path(f"/proc/{waiting}/cmdline").read_bytes().split(b"\0"))
    assert Path(f"/proc/{waiting}/cwd").readlink() == Path("/")
    assert b"secret" not in Path(f"/proc/{waiting}/environ").read_bytes()
    assert os.getsid(waiting) == waiting


def test_a_dead_warm_engine_costs_a_cold_start_and_is_replaced_afterwards(
    worker: Worker, engines: WarmPool, used: list[int], database: Database, submit: Submit
) -> None:
    dead = prepared(engines)
    os.kill(dead, signal.SIGKILL)
    wait_until(lambda: not is_alive(dead))
    engines.warm_up()
    assert engines.warm_pid is None
    job_id = submit()
    run_job(worker, engines)
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.failures) == ("succeeded", 1, 0)
    assert len(used) == 1
    assert engines.warm_pid not in (None, dead)


def test_a_warm_engine_that_dies_during_the_hand_over_costs_a_cold_start(
    engines: WarmPool, tmp_path: Path
) -> None:
    engine = EngineProcess([sys.executable, "-c", ""], None)
    engine._process.wait()
    assert engine.hand_over(["--config", "x"], tmp_path, {}) is False
    assert not (tmp_path / "engine.log").exists()
    engine.close()


def test_a_warm_engine_sees_the_gpus_of_its_job(tmp_path: Path) -> None:
    shown = (
        "from grpo_engine.run.prestart import await_job; await_job()\nimport os; print(os.environ['GPUS'])"
    )
    engine = EngineProcess([sys.executable, "-c", shown], None)
    assert engine.hand_over([], tmp_path, {"GPUS": "GPU-8a"})
    assert engine.wait(60) == 0
    assert engine.log_tail() == ("GPU-8a",)
    engine.close()


def test_a_warm_engine_with_outdated_settings_is_not_used(
    worker: Worker,
    engines: WarmPool,
    used: list[int],
    database: Database,
    submit: Submit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outdated = prepared(engines)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    job_id = submit()
    run_job(worker, engines)
    assert outdated not in used
    assert not is_alive(outdated)
    assert read_job(database, job_id).state == "succeeded"


def test_a_missing_interpreter_does_not_fail_the_warm_up(settings: Settings) -> None:
    broken = settings.model_copy(update={"engine_python": Path("/nowhere/python")})
    with closing(WarmPool(broken, keep_warm=True)) as engines:
        pid = prepared(engines)
        wait_until(lambda: not is_alive(pid))
        engines.warm_up()
        assert engines.warm_pid is None


def test_without_warm_engines_none_is_started(settings: Settings) -> None:
    engines = WarmPool(settings, keep_warm=False)
    engines.warm_up()
    assert engines.warm_pid is None


def test_idle_and_busy_workers_keep_one_warm_engine(
    settings: Settings, processes: Processes, submit: Submit, wait_for: WaitFor
) -> None:
    worker = processes.start_worker()
    (first,) = wait_until(lambda: waiting_engines(worker.pid), 120)
    job_id = submit({"*": {"step_seconds": 0.2}})
    wait_for(job_id, phase="training")
    assert engine_pids(settings) == [first]
    (second,) = wait_until(lambda: waiting_engines(worker.pid), 120)
    assert second != first
    wait_for(job_id, state="succeeded")
    assert waiting_engines(worker.pid) == [second]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_warm_engine_ends_with_its_worker(processes: Processes, number: signal.Signals) -> None:
    worker = processes.start_worker()
    (waiting,) = wait_until(lambda: waiting_engines(worker.pid), 120)
    worker.send_signal(number)
    worker.wait(timeout=60)
    wait_until(lambda: not is_alive(waiting), 120, "the warm engine ends")


def test_a_draining_worker_warms_no_engine(
    settings: Settings, processes: Processes, submit: Submit, wait_for: WaitFor
) -> None:
    job_id = submit({"1": {"step_seconds": 0.3}})
    worker = processes.start_worker()
    wait_for(job_id, phase="training")
    worker.terminate()
    assert worker.wait(timeout=60) == 0
    assert waiting_engines(worker.pid) == engine_pids(settings) == []


def test_a_warm_engine_exits_when_its_input_closes() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.support.fake_engine", "--warm"]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
