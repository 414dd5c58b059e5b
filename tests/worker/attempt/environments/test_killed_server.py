"""Whole jobs with the real engine whose OpenEnv server is killed while they run."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from examples.tiny_model import make_model
from grpo_engine.rollout.prompt_source import PromptSource
from service.app import create_app
from service.jobs.results.evidence import audit_job
from service.platform.db import Database
from service.platform.storage import Storage
from service.settings import Settings
from service.web.auth import create_key
from tests.conftest import on_sqlite
from tests.support.openenv.server import OpenEnvServer
from tests.worker.jobs import insert_file, insert_job, read_job
from tests.worker.jobs import method as small_method
from tests.worker.outcomes import in_background
from worker.attempt.worker import Worker

NUM_ROWS, SEED = 12, 7
FIELDS = {"prompts_per_step": 4, "group_size": 4, "max_completion_tokens": 60, "stop": ["a", "b"]}


@pytest.fixture
def job(
    database: Database, storage: Storage, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """Queues a job two of whose rows, both in its second step, kill the server. Returns its id."""
    make_model(worker.settings.models_dir / "tiny", hidden=32, layers=1, seed=3)
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "127.0.0.1")

    def job(server: OpenEnvServer, *, n_steps: int, timeout_seconds: float) -> str:
        killing: Any = PromptSource(range(NUM_ROWS), 4, SEED).batch(2)[:2]  # type: ignore[arg-type]
        resets = [{"word": "a"} | ({"behave": "kill"} if n in killing else {}) for n in range(NUM_ROWS)]
        message = {"role": "user", "content": "Play."}
        rows = [{"messages": [message], "environment": "game", "reset": reset} for reset in resets]
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        method = small_method(n_steps=n_steps, lora={"rank": 2}, **FIELDS).model_dump(mode="json")
        own = {"type": "openenv", "url": server.url, "timeout_seconds": timeout_seconds}
        method["reinforcement"] |= {"environments": {"game": own}, "grader": {"type": "environment"}}
        file_id = insert_file(database, storage, f"file-{n_steps}", content)
        return insert_job(database, file_id, method=method, total_steps=n_steps, seed=SEED)

    return job


def completions_of(settings: Settings, database: Database, job_id: str) -> dict[int, list[dict[str, Any]]]:
    """The job's completions by step, from the API."""
    with database.transaction() as session:
        key = create_key(session, "acme")
    with TestClient(create_app(settings), headers={"authorization": f"Bearer {key}"}) as client:
        groups = client.get(f"/v1/fine_tuning/jobs/{job_id}/rollouts", params={"limit": 100}).json()["data"]
    found: dict[int, list[dict[str, Any]]] = {}
    for group in groups:
        found.setdefault(group["step"], []).extend(group["completions"])
    return found


@on_sqlite
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_job_survives_a_killed_server_or_fails_with_a_clear_code_and_counts_nothing_as_0(
    worker: Worker,
    settings: Settings,
    database: Database,
    storage: Storage,
    job: Callable[..., str],
    comes_back: bool,
) -> None:
    real = replace(worker, settings=settings.model_copy(update={"engine_module": "grpo_engine"}))
    with OpenEnvServer("word") as server:
        # sessions wait for a server that comes back; without it, three steps fail soon
        n_steps, seconds = (3, 120.0) if comes_back else (9, 3.0)
        job_id = job(server, n_steps=n_steps, timeout_seconds=seconds)
        thread = in_background(real)
        while thread.is_alive():
            if comes_back and server.has_ended:
                server.start()
            thread.join(0.05)
    ended, found = read_job(database, job_id), completions_of(settings, database, job_id)
    if comes_back:
        assert (ended.state, ended.attempt, ended.step) == ("succeeded", 1, 3)
        assert all(each["episode"]["failure"] is None for each in found[3])
    else:
        assert (ended.state, ended.attempt) == ("failed", 1)
        assert ended.failure is not None
        assert ended.failure["code"] == "environment_unreachable"
        assert re.match(r"game, row \d+: no connection", ended.failure["evidence"][0])
    failed = [each for step in found.values() for each in step if each["episode"]["failure"]]
    assert failed
    assert {(each["reward"], each["advantage"]) for each in failed} == {(None, 0.0)}
    assert all(each["episode"]["failure"] is None for each in found[1])
    assert audit_job(database, storage, job_id) == []
