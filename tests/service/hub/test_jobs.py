"""A job that names a hub model: refused with the command, or added to the catalogue."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.platform.catalog import Catalog
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite, settings_for
from tests.service.job_samples import CONTEXT_TOKENS, num_jobs, request, row, upload
from tests.service.job_samples import jsonl as lines
from tests.support.model_hub.server import REVISION, ModelHub

pytestmark = on_sqlite  # nothing here depends on the database

JOBS = "/v1/fine_tuning/jobs"


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    """An operator who allows the hub's models."""
    return settings_for(tmp_path / "home", database_url, hub_models=True)


def test_the_job_is_queued_and_the_catalogue_has_the_model_at_its_revision(
    client: TestClient, settings: Settings, hub: ModelHub
) -> None:
    answer = client.post(JOBS, json=request(upload(client), model=hub.id))
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == hub.id
    assert [one["code"] for one in answer.json()["warnings"]] == []
    entry = Catalog(settings).find(hub.id)
    assert entry is not None
    assert (entry.path, entry.revision, entry.size_bytes) == (hub.id, REVISION, hub.size_bytes)
    assert entry.is_from_hub
    assert entry.must_download
    fetched = len(hub.fetched)
    assert client.post(JOBS, json=request(upload(client), model=hub.id)).status_code == 200
    assert len(hub.fetched) == fetched


def test_a_model_in_several_files_is_accepted_before_they_are_downloaded(
    client: TestClient, hub: ModelHub
) -> None:
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    hub.files |= dict.fromkeys(names, hub.files.pop("model.safetensors"))
    index = {"weight_map": dict(zip("ab", names, strict=True))}
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
    answer = client.post(JOBS, json=request(upload(client), model=hub.id))
    assert answer.status_code == 200, answer.text


def test_a_model_in_a_quantised_format_is_refused(client: TestClient, hub: ModelHub) -> None:
    config = {**json.loads(hub.files["config.json"]), "quantization_config": {"quant_method": "awq"}}
    hub.files["config.json"] = json.dumps(config).encode()
    added = client.post("/v1/models", json={"id": hub.id}).json()["error"]
    assert (added["param"], added["code"]) == ("id", "model_not_supported")
    assert "its weights are stored quantised (awq); use the unquantised model" in added["message"]


def test_rows_are_counted_with_the_hub_model_s_tokenizer(
    client: TestClient, hub: ModelHub, database: Database
) -> None:
    long = upload(client, lines(row("word " * CONTEXT_TOKENS)))
    answer = client.post(JOBS, json=request(long, model=hub.id))
    assert answer.status_code == 400
    assert "the model's context" in answer.json()["error"]["message"]
    assert num_jobs(database) == 0


def test_a_validated_job_adds_nothing_to_the_catalogue(
    client: TestClient, settings: Settings, hub: ModelHub
) -> None:
    answer = client.post(f"{JOBS}/validate", json=request(upload(client), model=hub.id))
    assert answer.json()["valid"] is True
    assert Catalog(settings).names() == []


def test_a_gated_model_is_refused_with_what_to_do(client: TestClient, hub: ModelHub) -> None:
    hub.token = "hf_needed"
    answer = client.post(JOBS, json=request(upload(client), model=hub.id))
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "model_gated", "model")
    assert "org/small is gated. Accept its terms at" in error["message"]


def test_a_model_that_the_hub_does_not_have_is_refused(client: TestClient, hub: ModelHub) -> None:
    answer = client.post(JOBS, json=request(upload(client), model="org/absent"))
    assert answer.status_code == 400
    assert f"there is no model org/absent on {hub.url}" in answer.json()["error"]["message"]


def test_where_the_hub_is_not_allowed_the_refusal_has_the_command(
    client: TestClient, app: FastAPI, settings: Settings, hub: ModelHub
) -> None:
    app.state.settings = settings_for(settings.home, settings.sqlalchemy_url)
    answer = client.post(JOBS, json=request(upload(client), model="Qwen/Qwen3-0.6B"))
    assert answer.status_code == 400
    assert "grpo models add Qwen/Qwen3-0.6B" in answer.json()["error"]["message"]
    assert hub.fetched == []


def test_a_model_is_added_without_a_job(client: TestClient, settings: Settings, hub: ModelHub) -> None:
    assert client.get("/v1/models").json()["hub_models"] is True
    added = client.post("/v1/models", json={"id": hub.id})
    assert added.status_code == 200, added.text
    assert (added.json()["id"], added.json()["size_bytes"]) == (hub.id, hub.size_bytes)
    assert Catalog(settings).names() == [hub.id]
    absent = client.post("/v1/models", json={"id": "org/absent"}).json()["error"]
    assert absent["param"] == "id"
    assert f"there is no model org/absent on {hub.url}" in absent["message"]


def test_where_the_hub_is_not_allowed_no_model_is_added(
    client: TestClient, app: FastAPI, settings: Settings, hub: ModelHub
) -> None:
    app.state.settings = settings_for(settings.home, settings.sqlalchemy_url)
    refused = client.post("/v1/models", json={"id": hub.id})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_owner")
    assert f"grpo models add {hub.id}" in refused.json()["error"]["message"]
    assert Catalog(settings).names() == []


@pytest.mark.parametrize("path", [JOBS, "/v1/models"])
def test_requests_that_ask_the_hub_leave_threads_for_others(
    client: TestClient, app: FastAPI, hub: ModelHub, path: str
) -> None:
    body = request(upload(client), model=hub.id) if path == JOBS else {"id": hub.id}
    with ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(app.state.server_limit.slot("tenant-a"))
        answer = client.post(path, json=body)
        assert (answer.status_code, answer.headers["retry-after"], hub.fetched) == (429, "5", [])
    assert client.post(path, json=body).status_code == 200
    with ExitStack() as stack:
        for _ in range(16):
            stack.enter_context(app.state.server_limit.slot("tenant-a"))
        assert client.post(path, json=body).status_code == 200  # the catalogue has the model now
