"""A running job, and a client of its stream, which the service polls often."""

from collections.abc import Iterator

import httpx
import pytest

from service.jobs.model.states import JobState
from service.jobs.progress import stream
from service.platform.db import Database
from tests.service.job_samples import add_job

SECONDS = 60


@pytest.fixture
def job_id(database: Database) -> str:
    return add_job(database, JobState.RUNNING)


@pytest.fixture(autouse=True)
def _poll_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream.JobFeed, "poll_seconds", 0.05)


@pytest.fixture
def http(server_url: str, api_key: str) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {api_key}"}
    url = f"{server_url}/v1/fine_tuning/jobs"
    with httpx.Client(base_url=url, headers=headers, timeout=SECONDS) as client:
        yield client
