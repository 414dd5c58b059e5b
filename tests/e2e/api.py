"""The API as a process that a test may kill and restart on the same port."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from service.platform.db import connect
from service.settings import Settings
from service.web.auth import create_key
from tests.ports import free_port
from tests.service.job_samples import jsonl, make_model, row
from tests.support.api_process import START_SECONDS, Process, start_api
from tests.worker.conftest import environment_of


@dataclass
class Api:
    """One deployment's API; `client` is the first tenant's."""

    settings: Settings
    port: int = field(default_factory=free_port)
    process: Process | None = None

    def __post_init__(self) -> None:
        database = connect(self.settings)
        with database.transaction() as session:
            key = create_key(session, "acme")
        database.engine.dispose()
        headers = {"Authorization": f"Bearer {key}"}
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=60)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def marks(self) -> Path:
        folder = self.settings.home / "marks"
        folder.mkdir(exist_ok=True)
        return folder

    def start(self, fault: str = "") -> None:
        """Start and wait until it is ready; `fault` (`GRPO_FAULT`) strikes once."""
        faults = {"GRPO_FAULT": fault, "GRPO_FAULT_MARKS": str(self.marks)} if fault else {}
        variables = environment_of(self.settings) | faults
        self.process = start_api(self.port, variables, self.settings.home / "api.log")

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(START_SECONDS)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def upload(self, question: str = "What is 3+3?") -> httpx.Response:
        """A small dataset."""
        content = jsonl(row(), row(question, "6"))
        data = {"purpose": "fine-tune"}
        return self.client.post("/v1/files", files={"file": ("train.jsonl", content)}, data=data)

    def post_job(self, training_file: str, key: str) -> httpx.Response:
        """Create a job with an idempotency key."""
        return self.client.post(
            "/v1/fine_tuning/jobs", json=job_body(training_file), headers={"Idempotency-Key": key}
        )

    def jobs(self) -> list[dict[str, Any]]:
        return list(self.client.get("/v1/fine_tuning/jobs").json()["data"])

    def messages(self, job_id: str, after: int, limit: int) -> list[tuple[int, str]]:
        """Read (number, message) of `limit` events of the live stream after a number."""
        found: list[tuple[int, str]] = []
        fields: dict[str, str] = {}
        path = f"/v1/fine_tuning/jobs/{job_id}/stream"
        with self.client.stream("GET", path, headers={"Last-Event-ID": str(after)}) as response:
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                fields[name] = value
                if not line and "data" in fields:
                    found.append((int(fields["id"]), json.loads(fields["data"]).get("message", "")))
                    fields = {}
                if len(found) == limit:
                    break
        return found


def job_body(training_file: str) -> dict[str, Any]:
    """A small reinforcement job."""
    grader = {"type": "numeric", "reference": "{{item.answer}}"}
    hyperparameters = {"group_size": 2, "prompts_per_step": 2, "n_steps": 10, "max_completion_tokens": 8}
    method = {"grader": grader, "hyperparameters": hyperparameters}
    return {
        "model": "tiny",
        "training_file": training_file,
        "method": {"type": "reinforcement", "reinforcement": method},
    }


@contextmanager
def api_process(settings: Settings) -> Iterator[Api]:
    """An API on a migrated database, not started yet; it is killed at the end of the block."""
    make_model(settings.home)
    api = Api(settings)
    try:
        yield api
    finally:
        api.client.close()
        if api.process is not None and api.process.poll() is None:
            api.kill()
