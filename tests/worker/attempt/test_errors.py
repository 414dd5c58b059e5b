"""How a job's events report errors of its worker and its engine."""

import errno
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from sqlalchemy.exc import OperationalError

from service.platform import logs
from service.platform.db import Database
from tests.worker.jobs import read_job
from tests.worker.outcomes import messages, run_until_idle
from worker.attempt import runner
from worker.attempt.attempt import Worker
from worker.attempt.runner import run_job

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
Submit = Callable[..., str]


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
    (line,) = [line for line in capsys.readouterr().err.splitlines() if found[1] in line]
    assert type(error).__name__ in line
