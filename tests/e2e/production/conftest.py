"""One deployment for all tests of this folder, with its artifacts in a bucket; either engine trains."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from examples.tiny_model import make_model
from service.cli.http.client import JOBS, Client
from tests.e2e.production.deployment import ForkedProduction, Production, empty_database, production
from tests.service.embedded import grpo_job, processes_of, write_rows
from tests.support.moto import Moto
from tests.support.s3 import Bucket, new_bucket
from tests.support.servers import Postgres, Redis, wait_until

SETTINGS = {
    "GRPO_ENGINE_MODULE": "tests.support.either_engine",
    # the job of a killed worker can be claimed soon
    "GRPO_LEASE_SECONDS": "6",
    "GRPO_SELF_FENCE_SECONDS": "5",
    "GRPO_HEARTBEAT_SECONDS": "0.5",
    "GRPO_SWEEP_SECONDS": "0.5",
    "GRPO_RETRY_BACKOFF_SECONDS": "0.2",
}


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny", hidden=32, layers=1)


@pytest.fixture(scope="package")
def s3(moto_server: Moto) -> Iterator[Bucket]:
    with new_bucket(moto_server) as bucket:
        yield bucket


@pytest.fixture(scope="package")
def running(
    tmp_path_factory: pytest.TempPathFactory,
    model: Path,
    postgres_server: Postgres,
    redis_server: Redis,
    s3: Bucket,
) -> Iterator[Production]:
    """No process is left when it is stopped while a job trains."""
    home = tmp_path_factory.mktemp("production") / "home"
    settings = {**SETTINGS, "GRPO_STORAGE_URL": s3.location}
    with (
        empty_database(postgres_server, "production") as url,
        production(home, model, url, redis_server, ForkedProduction, **settings) as running,
    ):
        yield running
        if "worker" not in running.running:
            running.start("worker")
        with running.client() as client:
            rows = write_rows(home / "rows.jsonl", faults={"step_seconds": 0.1})
            job_id = client.create(JOBS, grpo_job(client.upload(rows)["id"], steps=600))["id"]
            wait_until(lambda: client.get(f"{JOBS}/{job_id}")["progress"]["step"] > 0, 120)
        running.stop_all()
        assert processes_of(home) == []


@pytest.fixture(scope="package")
def first_metrics(running: Production) -> str:
    """`/metrics` once the worker's machine has announced itself."""

    def announced() -> str | None:
        text = httpx.get(f"{running.url}/metrics", timeout=60).text
        return text if 'grpo_worker_hosts{pool="default"} 1.0' in text else None

    return str(wait_until(announced, 60))


@pytest.fixture
def deployment(running: Production, first_metrics: str) -> Production:
    """Its worker runs, even if the test before has failed."""
    if "worker" not in running.running:
        running.start("worker")
    return running


@pytest.fixture
def client(deployment: Production) -> Iterator[Client]:
    with deployment.client() as client:
        yield client
