"""Failures of sinks: they never harm the job, are reported once, and missed steps are sent later."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from service.platform.db import Database
from service.platform.tables.core import Job
from service.platform.tables.sinks import JobSink
from service.settings import Settings
from service.sinks import outbox
from tests.conftest import on_sqlite
from tests.ports import free_port
from tests.support.servers import wait_until
from tests.worker.jobs import read_job
from tests.worker.sinks.samples import (
    MLFLOW,
    TENSORBOARD,
    WANDB,
    add_job,
    claim,
    end,
    environment,
    make_due,
    make_steps,
    row_of,
    start,
    wait_for,
    warnings_of,
)
from worker.sinks.__main__ import public_reason, run
from worker.sinks.keeper import Keeper

pytestmark = on_sqlite

TAIL = "They are kept here and sent again later."


@pytest.fixture
def keeper(database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Keeper]:
    for name, value in environment(settings).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("worker.sinks.keeper.STOP_SECONDS", 60.0)
    keeper = Keeper(database, settings)
    yield keeper
    keeper.end_all()


def package(folder: Path, source: str) -> Path:
    """A folder with a fake `wandb` package."""
    (folder / "wandb").mkdir(parents=True)
    (folder / "wandb" / "__init__.py").write_text(source)
    return folder


@contextmanager
def wandb_is(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace `wandb` in processes that start inside the block."""
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{package(folder, source)}{os.pathsep}{os.environ['PYTHONPATH']}")
        yield


def started_with(keeper: Keeper, folder: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start a sink's process and wait until it runs `ending` while it imports `wandb`."""
    marker = folder / "started"
    with wandb_is(folder, f"import time; open({str(marker)!r}, 'w'); {ending}", monkeypatch):
        keeper.check_once()
        wait_until(marker.exists, 120, "the process has started")


def ends(keeper: Keeper) -> bool:
    keeper.check_once()
    return not keeper.num_running


def run_sink(database: Database, settings: Settings) -> None:
    """Claim the due sink and run it in this process."""
    found = claim(database)
    assert found is not None
    assert run(database, settings, found, threading.Event()) == 0


def test_the_error_names_the_extra_of_a_missing_package(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    job_id = add_job(database, WANDB, steps=3)
    run_sink(database, settings)
    reason = "wandb is not installed on the worker; install it there: pip install 'grpo-service[wandb]'."
    assert row_of(database, job_id).reason == reason
    message = f"wandb did not accept the metrics: {reason} {TAIL}"
    assert warnings_of(database, job_id) == [{"code": "sink_wandb", "message": message}]


def test_wandb_without_a_key_fails_and_does_not_prompt(database: Database, settings: Settings) -> None:
    job_id = add_job(database, WANDB, steps=3)
    found = claim(database)
    assert found is not None
    wait_for(start(found, environment(settings, WANDB_MODE="online", HOME=str(settings.home))))
    assert row_of(database, job_id).reason.startswith("UsageError: No API key configured.")


def test_a_server_that_is_down_is_named_before_the_claim_expires(
    database: Database, settings: Settings
) -> None:
    server = f"http://127.0.0.1:{free_port()}"
    job_id = add_job(database, MLFLOW, steps=3)
    found = claim(database)
    assert found is not None
    wait_for(start(found, environment(settings, MLFLOW_TRACKING_URI=server)))
    assert row_of(database, job_id).reason.startswith(f"MlflowException: API request to {server}")


def test_a_crashed_process_is_reported_by_its_signal_and_retried(
    database: Database, keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = add_job(database, WANDB, steps=3)
    with wandb_is(tmp_path, "import os; os.abort()", monkeypatch):
        keeper.check_once()
        assert keeper.num_running == 1
        wait_until(lambda: ends(keeper), 120, "it is reaped")
    row = row_of(database, job_id)
    assert (row.reason, row.failures, row.state) == ("its process was killed by SIGABRT.", 1, "pending")


def test_a_process_that_hangs_is_killed_when_its_claim_expires(
    database: Database, keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = add_job(database, WANDB, steps=3)
    started_with(keeper, tmp_path, "time.sleep(600)", monkeypatch)
    with database.transaction() as session:
        session.execute(update(JobSink).values(due_at=0.0))
        session.execute(update(Job).values(step=0))  # so that it is not claimed again at once
    keeper.check_once()
    assert keeper.num_running == 0
    assert row_of(database, job_id).reason == "it hung and was killed; its server may be unreachable."


@pytest.mark.parametrize("let_go", [outbox.finish, outbox.release])
def test_a_process_that_ends_slowly_after_its_release_did_not_hang(
    database: Database,
    keeper: Keeper,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    let_go: Callable[[Session, outbox.Claim], bool],
) -> None:
    ended = tmp_path / "ended"
    job_id = add_job(database, WANDB, steps=3)
    started_with(keeper, tmp_path, f"time.sleep(2); open({str(ended)!r}, 'w')", monkeypatch)
    with database.transaction() as session:
        assert let_go(session, outbox.Claim(job_id, "wandb", 1))
        session.execute(update(Job).values(step=0))  # so that it is not claimed again at once
    keeper.check_once()
    assert (keeper.num_running, ended.exists()) == (0, True)
    row = row_of(database, job_id)
    assert (row.reason, row.failures) == ("", 0)


def test_a_stopped_keeper_lets_sinks_write_the_steps_already_read(
    database: Database, keeper: Keeper, settings: Settings
) -> None:
    job_id = add_job(database, TENSORBOARD, steps=5)
    keeper.check_once()
    wait_until(lambda: row_of(database, job_id).step == 4, 120, "four steps are written")
    keeper.end_all()
    row = row_of(database, job_id)
    assert (row.state, row.failures) == ("pending", 0)
    assert claim(database) is None, "there are no new metrics"
    make_steps(database, job_id, 6, 6)
    assert claim(database) == outbox.Claim(job_id, "tensorboard", 3)


def test_a_stopped_keeper_releases_a_sink_that_is_still_starting(
    database: Database, keeper: Keeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = add_job(database, WANDB, steps=3)
    monkeypatch.setattr("worker.sinks.keeper.STOP_SECONDS", 0.1)
    started_with(keeper, tmp_path, "time.sleep(600)", monkeypatch)
    keeper.end_all()
    row = row_of(database, job_id)
    assert (row.state, row.failures) == ("pending", 0)
    assert claim(database) == outbox.Claim(job_id, "wandb", 3)


def test_steps_missed_during_a_failure_are_sent_later(database: Database, settings: Settings) -> None:
    blocked = settings.tensorboard_root
    blocked.write_text("a file where the folder should be")
    job_id = add_job(database, TENSORBOARD, steps=3)
    run_sink(database, settings)
    assert row_of(database, job_id).failures == 1
    blocked.unlink()
    end(database, job_id)
    make_due(database, job_id)
    run_sink(database, settings)
    assert (row_of(database, job_id).state, row_of(database, job_id).step) == ("done", 3)
    (warning,) = warnings_of(database, job_id)
    assert warning["code"] == "sink_tensorboard"
    assert read_job(database, job_id).state == "succeeded"


def test_a_reason_contains_no_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef")
    error = RuntimeError("no entry for 0123456789abcdef at https://user:pass@host/x")
    assert public_reason("wandb", error) == "RuntimeError: no entry for *** at https://user:***@host/x."
