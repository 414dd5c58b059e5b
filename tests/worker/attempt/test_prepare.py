"""The run directory that a worker prepares, and the capabilities of its machine."""

import json
import socket
from dataclasses import replace
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import select

from grpo_engine.config.job import RunConfig, Runtime
from service.jobs.store import claiming, formats
from service.jobs.store.machines import installed_sinks, of_this_machine
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.workers import WorkerHost
from service.settings import Settings
from tests.service.job_samples import jsonl
from tests.worker.jobs import insert_dataset, insert_file, insert_job, method, read_job
from worker.attempt.attempt import Attempt, Refused
from worker.attempt.lease import Lease
from worker.attempt.prepare import prepare
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker
from worker.launchers.base import CONFIG
from worker.sweeper import sweep_once

ROWS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": f"{n} + {n}"}], "answer": str(2 * n)} for n in range(8)
]


def prepared(worker: Worker, job_id: str) -> RunConfig:
    """The engine's configuration for a claimed job."""
    with worker.database.transaction() as session:
        job = claiming.claim(
            session, pool="default", worker="w", lease_seconds=60, capabilities=worker.capabilities, gpus=8
        )
    assert job is not None
    assert job.id == job_id
    with Lease(worker.database, worker.settings, job, monotonic()) as lease:
        attempt = Attempt(worker, job, lease)
        attempt.folder.mkdir(parents=True)
        prepare(attempt)
        return RunConfig.model_validate_json((attempt.folder / CONFIG).read_text())


def read_jsonl(worker: Worker, name: str | None) -> list[Any]:
    """Rows of a file in the only run directory, which the configuration names relative to it."""
    assert name is not None
    (path,) = worker.settings.runs_dir.glob(f"*/*/{name}")
    return [json.loads(line) for line in path.read_text().splitlines()]


def with_grader(grader: dict[str, Any], **more: Any) -> dict[str, Any]:
    shape = method().model_dump(mode="json")
    shape["reinforcement"] |= {"grader": grader, **more}
    return shape


def test_datasets_are_files_on_the_engines_disk(worker: Worker, database: Database, storage: Storage) -> None:
    training = insert_file(database, storage, "file-training", jsonl(*ROWS))
    validation = insert_file(database, storage, "file-validation", jsonl(*ROWS[:2]))
    kept = insert_file(database, storage, "file-kept", jsonl(*ROWS[5:]))
    shape = method().model_dump(mode="json")
    shape["reinforcement"]["retention"] = [{"name": "general", "file": kept}]
    config = prepared(worker, insert_job(database, training, validation_file=validation, method=shape))
    assert read_jsonl(worker, config.training_file) == ROWS
    assert read_jsonl(worker, config.validation_file) == ROWS[:2]
    assert read_jsonl(worker, config.retention_files["general"]) == ROWS[5:]


def test_a_split_names_the_held_out_rows_of_the_only_file(
    worker: Worker, database: Database, storage: Storage
) -> None:
    job_id = insert_job(database, insert_dataset(database, storage), validation_split=0.25, seed=11)
    config = prepared(worker, job_id)
    assert (config.validation_split, config.validation_file, config.seed) == (0.25, None, 11)


def test_reward_models_are_located_in_the_catalogue(
    worker: Worker, database: Database, storage: Storage, settings: Settings
) -> None:
    named = {"type": "reward_model", "model": "tiny"}
    grader = {
        "type": "multi",
        "graders": {"a": {"type": "process", "grader": named}},
        "calculate_output": "a",
    }
    shape = with_grader(grader, eval_grader=named)
    config = prepared(worker, insert_job(database, insert_dataset(database, storage), method=shape))
    settings_given: Any = config.method.reinforcement  # type: ignore[union-attr]
    place = str(settings.home / "models" / "tiny")
    assert settings_given.grader.graders["a"].grader.path == place
    assert settings_given.eval_grader.path == place


def test_a_reward_model_that_left_the_catalogue_fails_the_job(
    worker: Worker, database: Database, storage: Storage
) -> None:
    shape = with_grader({"type": "reward_model", "model": "gone"})
    with pytest.raises(Refused, match="the model gone is not in the catalogue") as refused:
        prepared(worker, insert_job(database, insert_dataset(database, storage), method=shape))
    assert refused.value.failure["code"] == "model_not_found"


def test_a_job_without_newer_fields_is_prepared(worker: Worker, database: Database, storage: Storage) -> None:
    shape = method().model_dump(mode="json")
    for name in ("eval_grader", "retention", "tools"):
        del shape["reinforcement"][name]
    config = prepared(worker, insert_job(database, insert_dataset(database, storage), method=shape))
    assert config.retention_files == {}


def test_a_sweep_announces_the_machine_s_capabilities(worker: Worker, database: Database) -> None:
    sweep_once(database, worker.wakeups, worker.settings)
    with database.reading() as session:
        (row,) = session.scalars(select(WorkerHost)).all()
    assert (row.host, row.pool) == (socket.gethostname()[:128], "default")
    assert frozenset(row.capabilities.split()) == of_this_machine() | installed_sinks() | formats.UNDERSTOOD
    assert worker.capabilities == of_this_machine()
    assert row.gpus == worker.settings.gpus


def test_a_job_that_this_machine_cannot_run_is_left_for_others(
    worker: Worker, database: Database, storage: Storage
) -> None:
    job_id = insert_job(database, insert_dataset(database, storage), required_capabilities="quantum")
    assert run_job(worker) is False
    assert read_job(database, job_id).state == "queued"


def test_engines_run_with_the_deployments_runtime_and_the_jobs_ranks(
    worker: Worker, database: Database, storage: Storage
) -> None:
    runtime = Runtime(dtype="bfloat16", token_budget=512)  # type: ignore[call-arg]
    changed = replace(worker, settings=worker.settings.model_copy(update={"runtime": runtime}))
    dataset = insert_dataset(database, storage)
    own = runtime.model_copy(update={"agent_host": worker.settings.serve_address})
    assert prepared(changed, insert_job(database, dataset)).runtime == own
    four = prepared(changed, insert_job(database, dataset, required_gpus=4)).runtime
    assert four == own.model_copy(update={"ranks": 4})
