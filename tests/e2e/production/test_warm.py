"""The warm engine in production: it is a child of Celery's pool child, which runs many jobs."""

import os
import signal
from pathlib import Path

import pytest

from service.cli.commands.watch import watch_job
from service.cli.http.client import JOBS, Client
from tests.e2e.production.deployment import Production
from tests.service.embedded import grpo_job, write_rows
from tests.support.servers import wait_until
from tests.support.waiting import is_alive, waiting_engines, working_engines

pytestmark = pytest.mark.slow


def waiting(deployment: Production) -> int:
    """Process id of the warm engine."""
    worker = deployment.running["worker"].pid
    (pid,) = wait_until(lambda: len(waiting_engines(worker)) == 1 and waiting_engines(worker), 120)
    return int(pid)


def test_jobs_of_a_celery_worker_start_on_warm_engines(
    deployment: Production, client: Client, tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", faults={"step_seconds": 0.1})
    used = []
    for _ in range(2):
        pid = waiting(deployment)
        job_id = client.create(JOBS, grpo_job(client.upload(rows)["id"]))["id"]
        wait_until(lambda: working_engines(deployment.home / "runs"), 120)
        used.append(pid)
        assert working_engines(deployment.home / "runs") == [pid]
        assert watch_job(client, job_id)["status"] == "succeeded"
    assert len(set(used)) == 2
    last = waiting(deployment)
    assert last not in used
    assert deployment.stop("worker") == 0
    wait_until(lambda: not is_alive(last), 120, "the warm engine ends with its worker")


def test_the_warm_engine_of_a_killed_pool_child_is_replaced(deployment: Production) -> None:
    wait_until(lambda: "ready." in deployment.output("worker"), 120, "Celery watches its pool child")
    first = waiting(deployment)
    child = int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])
    assert child != deployment.running["worker"].pid
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: not is_alive(first), 120, "the warm engine ends with the child")
    assert waiting(deployment) != first
