"""Size, context, family and fit of the models in `/v1/models`."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from docs.generate_sizing import MODELS, job, model_shape
from examples.tiny_model import make_model
from service.jobs.model.states import JobState
from service.models_catalog.facts import WorkerMemory, fits_one
from service.platform.catalog import Catalog
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite, settings_for
from tests.service.job_samples import add_artifact, add_job

pytestmark = on_sqlite  # nothing here depends on the database

NAME = "ft:tiny:tenant-a::abc"


@pytest.fixture
def folder(settings: Settings) -> Path:
    return make_model(settings.models_dir / "tiny", hidden=32, layers=1)


def read(client: TestClient, name: str) -> dict[str, Any]:
    """The model in the list, which is the same when it is read alone."""
    (listed,) = [model for model in client.get("/v1/models").json()["data"] if model["id"] == name]
    assert client.get(f"/v1/models/{name}").json() == listed
    return dict(listed)


def test_a_base_model_has_size_context_family_and_fit(client: TestClient, folder: Path) -> None:
    found = read(client, "tiny")
    assert found["size_bytes"] == (folder / "model.safetensors").stat().st_size
    assert (found["family"], found["context_length"]) == ("qwen3", 512)
    assert found["fits"] == {"lora": True, "full": True}
    assert (found["parent"], found["job_id"]) == (None, None)


def test_a_fine_tuned_model_names_its_job_and_the_model_that_it_started_from(
    client: TestClient, settings: Settings, database: Database, folder: Path
) -> None:
    job_id = add_job(database, JobState.SUCCEEDED, model="tiny", fine_tuned_model=NAME)
    add_artifact(settings, database, job_id, "adapter", b"weights")
    found = read(client, NAME)
    assert (found["parent"], found["job_id"], found["size_bytes"]) == ("tiny", job_id, 7)
    assert (found["family"], found["fits"]) == ("qwen3", {"lora": True, "full": True})


def test_the_operators_limit_of_the_context_counts(client: TestClient, app: FastAPI, folder: Path) -> None:
    catalog: Catalog = app.state.catalog
    catalog.add("short", str(folder))
    path = app.state.settings.home / "models.json"
    path.write_text(path.read_text().replace('"added_at"', '"max_context_tokens": 128, "added_at"'))
    assert read(client, "short")["context_length"] == 128


def test_without_a_known_worker_or_without_weights_the_fit_is_unknown(
    client: TestClient, app: FastAPI, settings: Settings, folder: Path
) -> None:
    app.state.settings = settings_for(settings.home, settings.sqlalchemy_url, launcher="ray")
    assert read(client, "tiny")["fits"] == {"lora": None, "full": None}
    app.state.settings = settings
    (folder / "model.safetensors").unlink()
    assert read(client, "tiny")["fits"] == {"lora": None, "full": None}


@pytest.mark.parametrize(
    ("model", "gigabytes", "lora", "full"),
    [("Qwen3-0.6B", 80, True, True), ("Qwen3-4B", 24, None, False), ("Qwen3-32B", 24, False, False)],
)
def test_a_model_fits_a_gpu_with_enough_memory(
    settings: Settings, model: str, gigabytes: int, lora: bool | None, full: bool | None
) -> None:
    shape, memory = model_shape(MODELS[model]), WorkerMemory(gigabytes * 10**9, on_gpu=True)
    assert fits_one(shape, job({}), memory, settings) is lora
    assert fits_one(shape, job({"lora": "full"}), memory, settings) is full


@pytest.mark.parametrize(
    "fault",
    [
        {"num_attention_heads": 0, "n_head": 0},
        {"vocab_size": 10**400},
        {"hidden_size": 10**400},
        {"num_hidden_layers": -1},
        {"text_config": "none"},
        {"text_config": [[]]},
    ],
)
def test_a_model_with_an_impossible_configuration_is_listed_without_its_fit(
    client: TestClient, folder: Path, fault: dict[str, Any]
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fault))
    assert read(client, "tiny")["fits"] == {"lora": None, "full": None}


def test_a_model_whose_configuration_is_nested_too_deeply_is_listed(client: TestClient, folder: Path) -> None:
    (folder / "config.json").write_text("[" * 100_000)
    assert read(client, "tiny")["family"] is None
