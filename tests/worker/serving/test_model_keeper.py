"""Which models a worker keeps loaded."""

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.job import ModelSource
from service.jobs.results.weights import ModelParts
from service.platform.db import Database
from service.serving import repository
from tests.conftest import on_sqlite
from worker.attempt.worker import Worker
from worker.serving.model_keeper import LEASE_SECONDS, ModelKeeper
from worker.serving.model_process import ModelProcess


@on_sqlite
def test_a_model_that_gets_a_request_while_another_is_claimed_stays_loaded(
    worker: Worker, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = worker.settings.model_copy(update={"chat_models": 1})
    keeper = ModelKeeper(replace(worker, settings=settings))
    with database.transaction() as session:
        repository.want(session, "key-1", "tenant-a", "tiny", is_new=True)
        loaded = repository.claim(session, worker.name, LEASE_SECONDS)
    entry = worker.catalog.find("tiny")
    assert loaded is not None
    assert entry is not None
    parts = ModelParts("tiny", entry, None)
    process = ModelProcess(loaded, parts, fetched, tmp_path, settings, threading.Event())
    process.address = "http://127.0.0.1:9"
    keeper.processes.append(process)
    with database.transaction() as session:
        repository.want(session, "key-2", "tenant-a", "other", is_new=True)
    claims: Callable[..., Any] = repository.claim

    def claim_during_a_request(*arguments: Any) -> Any:
        process.num_open = 1
        return claims(*arguments)

    monkeypatch.setattr(repository, "claim", claim_during_a_request)
    keeper.round()
    assert keeper.processes == [process]
    with database.reading() as session:
        other = repository.find(session, "key-2")
    assert other is not None
    assert (other.is_held, other.refusal) == (False, None), "it is claimed again as soon as a model is idle"


def fetched(folder: Path) -> ModelSource:
    return ModelSource(name="tiny", path=str(folder))
