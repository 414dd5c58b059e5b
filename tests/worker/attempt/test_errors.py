"""How a job's events report errors of its worker and its engine."""

import errno
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from examples.tiny_model import make_model
from service.platform import logs
from service.platform.db import Database
from service.platform.tables.core import JobEvent
from tests.worker.jobs import read_job
from tests.worker.outcomes import messages, run_until_idle
from worker.attempt import runner
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
Submit = Callable[..., str]
SHORT = {"n_steps": 2, "checkpoint_interval": 2, "max_completion_tokens": 4, "lora": {"rank": 2}}


def test_the_last_output_of_an_engine_without_a_result_is_shown_without_secrets(
    worker: Worker, database: Database, submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_private")
    engine = tmp_path / "engine"
    engine.write_text(
        "#!/bin/sh\nfor n in $(seq 30); do echo line $n; done\n"
        f"echo {'x' * 2000}\necho postgresql://grpo:hidden@db/grpo refuses $HF_TOKEN >&2\nexit 3\n"
    )
    engine.chmod(0o755)
    broken = replace(worker, settings=worker.settings.model_copy(update={"engine_python": engine}))
    job_id = submit()
    run_until_idle(broken, database)
    last_line = "postgresql://grpo:***@db/grpo refuses ***"
    reason = f"The engine ended with exit code 3 and no result. Its last output: {last_line}"
    job = read_job(database, job_id)
    assert job.failure is not None
    assert job.failure["code"] == "poisoned"
    assert job.failure["message"].endswith(reason)
    assert job.failure["evidence"] == [*(f"line {n}" for n in range(13, 31)), "x" * 500, last_line]
    assert messages(database, job_id).count(reason) == 3


ERRORS = {
    "database": (OperationalError("SELECT", {}, Exception("gone")), "The database was unavailable"),
    "memory": (
        OSError(errno.ENOMEM, "Cannot allocate memory", "/secret/path"),
        "Operating system error on the worker: Cannot allocate memory",
    ),
    "bug": (KeyError("hidden"), "Internal worker error"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_a_worker_error_has_an_id_that_is_also_logged(
    worker: Worker,
    database: Database,
    submit: Submit,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    error, cause = ERRORS[kind]
    monkeypatch.setattr(runner, "prepare", Mock(side_effect=error))
    job_id = submit()
    logs.configure()
    assert run_job(worker)
    reason = messages(database, job_id)[-1]
    found = re.fullmatch(rf"{cause} \(id (err-\w+)\); see the worker's log\.", reason)
    assert found is not None, reason
    line, requeued = [line for line in capsys.readouterr().err.splitlines() if found[1] in line]
    assert type(error).__name__ in line
    assert json.loads(requeued)["event"] == "job requeued"


@pytest.fixture
def real_worker(worker: Worker) -> Worker:
    """A worker with the real engine and a tiny model."""
    make_model(worker.settings.models_dir / "tiny", hidden=32, layers=1, seed=3)
    return replace(worker, settings=worker.settings.model_copy(update={"engine_module": "grpo_engine"}))


def failed_attempts(database: Database, job_id: str) -> list[tuple[str, str]]:
    """Message and last line of the evidence of each attempt that was tried again."""
    entries = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.level == "warn")
    with database.reading() as session:
        found = session.scalars(entries.order_by(JobEvent.sequence)).all()
    return [(one.message, one.data["evidence"][-1]) for one in found if one.type == "status"]


def test_the_same_exception_at_the_same_place_fails_the_job_in_the_second_attempt(
    real_worker: Worker, database: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_FAULT", "step.trained:raise")
    job_id = submit(hyperparameters=SHORT)
    run_until_idle(real_worker, database)
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.failures) == ("failed", 2, 1)
    assert job.failure is not None
    assert (job.failure["code"], job.failure["message"]) == ("engine_error", "InjectedFault: step.trained")
    *outer, raising = job.failure["evidence"]
    assert raising.startswith("grpo_engine/process/fault_points.py:")
    assert raising.endswith(" in _act: raise InjectedFault(point)")
    assert any(line.startswith("grpo_engine/training/loop.py:") and "in _step" in line for line in outer)
    assert failed_attempts(database, job_id) == [("InjectedFault: step.trained", raising)]


def test_exceptions_at_different_places_are_tried_again(
    real_worker: Worker, database: Database, submit: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_FAULT", "engine.loaded:raise, step.trained:raise")
    monkeypatch.setenv("GRPO_FAULT_MARKS", str(tmp_path))
    job_id = submit(hyperparameters=SHORT)
    run_until_idle(real_worker, database)
    job = read_job(database, job_id)
    assert (job.state, job.attempt, job.failure) == ("succeeded", 3, None)
    points = [message for message, _ in failed_attempts(database, job_id)]
    assert points == ["InjectedFault: engine.loaded", "InjectedFault: step.trained"]
