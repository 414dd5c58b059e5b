"""schemathesis on the running service: every check that it has, single and chained requests, real PostgreSQL.

A short pass belongs to the suite; `make fuzz EXAMPLES=1000` sends the long one.
"""

import os
import subprocess
import sys
from pathlib import Path

from service.jobs.model.states import JobState
from service.jobs.store import history
from service.jobs.store.history import HistoryEntry
from service.platform.db import Database, connect
from service.platform.tables.core import Metric
from service.settings import Settings
from tests.fuzz.serving import Api
from tests.service.embedded import ROOT
from tests.service.job_samples import MODEL, add_artifact, add_checkpoint, add_job, jsonl, row, store_file
from tests.service.serving.answering import answering

ENVIRONMENT = {"GRPO_MAX_QUEUED_JOBS": "1000000"}
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "0"))
"""Of each operation; 0: the short pass."""
SHORT_PASS = r"""
# The coverage phase of these is tens of thousands of requests: only the long pass sends it.
[[operations]]
include-path-regex = '/jobs$|/jobs/validate$|/probes$|/clone$|/rescore$|/graders/|completions$'
phases.coverage.enabled = false
"""


def populate(settings: Settings, folder: Path) -> None:
    """Jobs in every state with all their objects, whose ids schemathesis gets."""
    database = connect(settings)
    jobs, checkpoints = [], []
    files = [store_file(settings, database, jsonl(row(), row("What is 3+3?", "6"))) for _ in range(3)]
    for state in JobState:
        job_id = add_job(database, state, training_file=files[0])
        jobs.append(job_id)
        checkpoints.append(add_checkpoint(settings, database, job_id, 5, b"weights"))
        files.append(add_artifact(settings, database, job_id, "adapter", b"weights"))
        _add_series(database, job_id)
    database.engine.dispose()
    named = {"jobs": jobs, "files": files, "checkpoints": checkpoints, "models": [MODEL]}
    for name, values in named.items():
        (folder / f"{name}.txt").write_text("".join(f'"{value}"\n' for value in values))


def _add_series(database: Database, job_id: str) -> None:
    with database.transaction() as session:
        for step in range(1, 4):
            session.add(Metric(job_id=job_id, step=step, values={"reward": step / 4}))
            history.append(session, job_id, HistoryEntry("message", f"step {step}"))


def schemathesis(api: Api, folder: Path, more: str, *options: str) -> None:
    """A run of its own command with our configuration and more; its report is the failure's text."""
    configuration = Path(__file__).with_name("schemathesis.toml").read_text()
    (folder / "schemathesis.toml").write_text(configuration + more)
    program, document = Path(sys.executable).with_name("schemathesis"), f"{api.url}/openapi.json"
    done = subprocess.run(
        [program, "--config-file", "schemathesis.toml", "run", document, "--url", api.url, *options],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "GRPO_API_KEY": api.key},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def test_the_contract_holds_for_whatever_is_sent(api: Api, tmp_path: Path) -> None:
    populate(api.settings, tmp_path)
    with answering(api.settings):
        if EXAMPLES:
            schemathesis(api, tmp_path, "", "--max-examples", str(EXAMPLES))
        else:
            schemathesis(api, tmp_path, SHORT_PASS, "--max-examples", "3", "--seed", "1", "--no-shrink")
