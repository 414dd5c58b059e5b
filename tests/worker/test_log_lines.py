"""Log lines about an attempt name it, in every thread, and what a job's owner may read has no secrets."""

import json
from collections.abc import Callable
from unittest.mock import Mock

import pytest
import structlog
from sqlalchemy import update
from sqlalchemy.exc import OperationalError
from structlog.contextvars import bound_contextvars

from service.platform import logs
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.tables.core import Job
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.support.servers import wait_until
from worker.attempt.lease import Lease
from worker.attempt.runner import claim, log_fields, run_job
from worker.attempt.worker import Worker
from worker.launchers.gpu_reservation import Reservation
from worker.loop import try_job
from worker.masking import mask_secrets
from worker.sweeper import sweep_once

Submit = Callable[..., str]
ABOUT = ("tenant", "job", "attempt", "fence", "worker")


class Lines:
    """All log lines so far."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._text = ""

    def of(self, event: str) -> list[dict[str, object]]:
        self._text += self._capsys.readouterr().err
        found = [json.loads(line) for line in self._text.splitlines()]
        return [line for line in found if line["event"] == event]


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Lines:
    logs.configure()
    return Lines(capsys)


@on_sqlite
def test_only_the_lines_of_an_attempt_name_it(worker: Worker, submit: Submit, lines: Lines) -> None:
    job_id = submit()
    run_job(worker)
    (line,) = lines.of("engine started")
    assert [line[name] for name in ABOUT] == ["acme", job_id, 1, 1, "test-worker"]
    structlog.get_logger().info("afterwards")
    (line,) = lines.of("afterwards")
    assert not set(ABOUT) & set(line)


@on_sqlite
def test_lines_of_the_lease_threads_name_the_attempt(
    settings: Settings, worker: Worker, submit: Submit, lines: Lines
) -> None:
    job_id = submit()
    claimed = claim(worker, Reservation())
    assert claimed is not None
    job, claimed_at = claimed
    quick = settings.model_copy(update={"self_fence_seconds": 0.1})
    with (
        bound_contextvars(**log_fields(worker, job)),
        Lease(worker.database, quick, job, claimed_at - 10) as lease,
    ):
        wait_until(lambda: lease.lost, 120)
    (line,) = lines.of("lease not renewed for too long; killing the engine")
    assert [line[name] for name in ABOUT] == ["acme", job_id, 1, 1, "test-worker"]


@on_sqlite
def test_an_expired_lease_is_logged_with_its_worker(
    database: Database, settings: Settings, worker: Worker, submit: Submit, lines: Lines
) -> None:
    job_id = submit()
    assert claim(worker, Reservation()) is not None
    with database.transaction() as session:
        session.execute(update(Job).values(lease_expires_at=db_now() - 1))
    sweep_once(database, worker.wakeups, settings)
    (line,) = lines.of("lease expired")
    assert [line[name] for name in ABOUT] == ["acme", job_id, 1, 2, "test-worker"]


@on_sqlite
def test_what_prevents_claims_is_logged_once_when_it_begins_and_once_when_it_ends(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, lines: Lines
) -> None:
    worker.catalog.file.write_text("{")
    for _ in range(3):
        assert not try_job(worker)
    (line,) = lines.of("no claim")
    assert str(line["reason"]).startswith(f"the model catalogue {worker.catalog.file} cannot be read: ")
    worker.catalog.file.unlink()
    with monkeypatch.context() as patch:
        patch.setattr(
            "service.jobs.store.claiming.claim", Mock(side_effect=OperationalError("", {}, Exception()))
        )
        for _ in range(3):
            assert not try_job(worker)
    assert [line["reason"] for line in lines.of("no claim")[1:]] == ["OperationalError"]
    for _ in range(2):
        assert not try_job(worker)
    assert len(lines.of("claiming again")) == 1


def test_a_secret_that_starts_with_another_one_is_removed_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY_PREFIX", "tenant-")
    monkeypatch.setenv("B_API_KEY", "tenant-5d41402abc")
    assert mask_secrets("401 for tenant-5d41402abc") == "401 for ***"
