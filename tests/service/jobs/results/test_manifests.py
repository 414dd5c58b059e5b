"""Manifests: what decided a result, the same job again, and what two jobs differ in."""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.results.manifest import (
    DataFile,
    Facts,
    PublicBase,
    differences,
    document,
    hides_secrets,
    request_of,
)
from service.jobs.results.model_card import model_card
from service.jobs.results.vllm_command import serve_line
from service.platform.db import Database
from service.settings import Settings
from tests.service.embedded import call_grpo
from tests.service.job_samples import create, expanded, jsonl, make_model, reinforcement, row, upload

ROWS = jsonl(row(), row("What is 3+3?", "6"))
JOBS = "/v1/fine_tuning/jobs"
sqlite_only = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
Grpo = Callable[..., subprocess.CompletedProcess[str]]


def facts(**more: Any) -> Facts:
    file, base = DataFile("file-1", 10, "a" * 64), PublicBase("org/tiny", "hub")
    known = {"model": "tiny", "base": base, "method": expanded(), "seed": 7}
    return Facts(**{**known, "resources": {"gpus": 0}, "files": {"training_file": file}, **more})


def with_settings(manifest: dict[str, Any], **settings: Any) -> dict[str, Any]:
    method = manifest["method"]["reinforcement"]
    changed = {**method, "hyperparameters": {**method["hyperparameters"], **settings}}
    return {**manifest, "method": {"type": "reinforcement", "reinforcement": changed}}


@pytest.fixture
def made(client: TestClient, settings: Settings) -> dict[str, Any]:
    """A job of the API."""
    make_model(settings.home)
    return create(client, upload(client, ROWS), seed=5, suffix="demo", metadata={"team": "a"})


@pytest.fixture
def grpo(server_url: str, api_key: str) -> Grpo:
    environment = {**os.environ, "GRPO_URL": server_url, "GRPO_API_KEY": api_key}
    return lambda *arguments: call_grpo(*arguments, environment=environment)


def test_a_job_answers_its_manifest(client: TestClient, made: dict[str, Any]) -> None:
    found = client.get(f"{JOBS}/{made['id']}/manifest").json()
    assert found["data"] == {
        "training_file": {"sha256": hashlib.sha256(ROWS).hexdigest(), "bytes": len(ROWS)}
    }
    assert found["job"]["files"] == {"training_file": made["training_file"]}
    assert (found["seed"], found["job"]["suffix"], found["job"]["metadata"]) == (5, "demo", {"team": "a"})
    assert found["method"]["reinforcement"]["hyperparameters"]["lora"]["rank"] == 16
    assert found["job"]["serve"] == (
        f"vllm serve tiny --enable-lora --lora-modules {made['id']}=./{made['id']} --max-lora-rank 16"
    )
    assert found["engine"] == {}, "it has not started"


def test_a_deleted_dataset_stays_known_by_its_hash(client: TestClient, made: dict[str, Any]) -> None:
    before = client.get(f"{JOBS}/{made['id']}/manifest").json()
    assert client.post(f"{JOBS}/{made['id']}/cancel").status_code == 200
    assert client.delete(f"/v1/files/{made['training_file']}").status_code == 200
    assert client.get(f"{JOBS}/{made['id']}/manifest").json()["data"] == before["data"]


def test_the_same_request_makes_the_same_manifest_and_nothing_to_compare(
    client: TestClient, made: dict[str, Any]
) -> None:
    one = client.get(f"{JOBS}/{made['id']}/manifest").json()
    body = request_of(one, {hashlib.sha256(ROWS).hexdigest(): made["training_file"]})
    again = client.post(JOBS, json=body).json()
    assert (again["method"], again["seed"], again["suffix"]) == (made["method"], 5, "demo")
    other = client.get(f"{JOBS}/{again['id']}/manifest").json()
    assert {**other, "job": None} == {**one, "job": None}
    assert differences(one, other) == []


def test_differences_are_reported_field_by_field() -> None:
    one = document(facts())
    other = document(facts(seed=8, method=expanded(group_size=4)))
    found = {each["field"]: (each["left"], each["right"]) for each in differences(one, other)}
    assert found.pop("configuration_sha256")
    assert found == {"seed": (7, 8), "method.reinforcement.hyperparameters.group_size": (8, 4)}


def test_values_of_headers_are_hidden_and_still_decide_the_hash() -> None:
    def with_key(key: str) -> dict[str, Any]:
        grader = {"type": "endpoint", "url": "https://x.example", "headers": {"authorization": key}}
        return document(facts(method=reinforcement(grader)))

    one, other = with_key("Bearer one"), with_key("Bearer two")
    assert "Bearer" not in json.dumps(one) + model_card(one)
    assert hides_secrets(one)
    assert not hides_secrets(document(facts()))
    assert {each["field"] for each in differences(one, other)} == {
        "configuration_sha256",
        "graders.grader.sha256",
    }


def test_a_tools_parameter_called_headers_is_not_hidden() -> None:
    schema = {"type": "object", "properties": {"headers": {"type": "object"}}}
    tool = {"type": "http", "name": "get", "url": "https://x.example", "headers": {}, "parameters": schema}
    method = expanded()
    method["reinforcement"]["tools"] = [tool]
    manifest = document(facts(method=method))
    assert not hides_secrets(manifest)
    again = request_of(manifest, {"a" * 64: "file-1"})
    assert again["method"]["reinforcement"]["tools"] == [tool]


def test_retention_rows_are_named_by_what_is_in_them() -> None:
    method = reinforcement()
    method["reinforcement"]["retention"] = [{"name": "other", "file": "file-2"}]
    kept = DataFile("file-2", 5, "b" * 64)
    training = DataFile("file-1", 10, "a" * 64)
    found = document(facts(method=method, files={"training_file": training, "retention.other": kept}))
    assert found["method"]["reinforcement"]["retention"][0]["file"] == f"sha256:{'b' * 64}"
    again = request_of(found, {"a" * 64: "file-8", "b" * 64: "file-9"})
    assert again["training_file"] == "file-8"
    assert again["method"]["reinforcement"]["retention"] == [{"name": "other", "file": "file-9"}]


@pytest.mark.parametrize(("rank", "allowed"), [(1, 8), (16, 16), (17, 32), (200, 256), (512, 512)])
def test_the_vllm_command_has_an_allowed_rank(rank: int, allowed: int) -> None:
    manifest = with_settings(document(facts()), lora={"rank": rank})
    assert serve_line(manifest, name="n", path="./p").endswith(f"--max-lora-rank {allowed}")


def test_the_vllm_command_has_the_rank_that_the_engine_reported() -> None:
    manifest = with_settings(document(facts(engine={"adapter_rank": 32})), lora={"rank": 16})
    assert serve_line(manifest, name="n", path="./p").endswith("--max-lora-rank 32")
    assert "--max-lora-rank 32" in model_card(manifest)


def test_the_card_converts_a_base_whose_files_are_quantised() -> None:
    card = model_card(document(facts(engine={"base_format": "mxfp4"})))
    assert "AutoTokenizer, Mxfp4Config\n\nconverted = Mxfp4Config(dequantize=True)" in card
    assert 'from_pretrained("org/tiny", quantization_config=converted)\n' in card


def test_the_card_loads_a_base_that_is_inside_a_vision_language_model_with_the_whole() -> None:
    card = model_card(document(facts(engine={"base_class": "AutoModelForImageTextToText"})))
    assert (
        "import AutoModelForImageTextToText, AutoTokenizer\n\nbase = AutoModelForImageTextToText.from" in card
    )


def test_a_revision_and_whole_weights_are_served_as_what_they_are() -> None:
    pinned = document(facts(base=PublicBase("org/tiny", "hub", revision="abc")))
    assert serve_line(pinned, name="n", path="./p").startswith(
        "vllm serve org/tiny --revision abc --enable-lora"
    )
    whole = with_settings(pinned, lora="full")
    assert serve_line(whole, name="n", path="./my model") == "vllm serve './my model' --served-model-name n"
    assert "library_name: transformers" in model_card(whole)


def test_a_base_that_is_another_jobs_checkpoint_is_expected_beside_the_adapter() -> None:
    base = PublicBase("ftckpt_2", "job", job="ftjob-1", checkpoint="ftckpt_2")
    chained = document(facts(base=base))
    for path, expected in (("./", "../ftckpt_2"), ("./ftjob-3", "ftckpt_2"), ("/a/ftjob-3", "/a/ftckpt_2")):
        assert serve_line(chained, name="n", path=path).startswith(f"vllm serve {expected} --enable-lora")
    card = model_card(chained)
    assert "grpo download ftjob-1 --checkpoint ftckpt_2 --extract" in card
    assert "`GET /v1/fine_tuning/jobs/ftjob-1/adapter?checkpoint=ftckpt_2`" in card


@sqlite_only
def test_a_job_is_run_again_from_its_manifest(grpo: Grpo, made: dict[str, Any], tmp_path: Path) -> None:
    printed = grpo("manifest", made["id"])
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(printed.stdout).items() if k != "job"}))
    again = json.loads(grpo("rerun", path, "--json").stdout)
    assert (again["method"], again["seed"], again["training_file"]) == (
        made["method"],
        5,
        made["training_file"],
    )
    assert grpo("compare", made["id"], again["id"]).stdout.startswith("Equal")


@sqlite_only
def test_without_its_data_a_job_is_not_run_again_but_with_the_same_rows(
    grpo: Grpo, made: dict[str, Any], client: TestClient, database: Database, tmp_path: Path
) -> None:
    client.post(f"{JOBS}/{made['id']}/cancel")
    client.delete(f"/v1/files/{made['training_file']}")
    gone = grpo("rerun", made["id"])
    assert gone.returncode == 1
    assert (
        f"training_file is gone: no stored file has sha256 {hashlib.sha256(ROWS).hexdigest()}" in gone.stderr
    )
    other, same = tmp_path / "other.jsonl", tmp_path / "same.jsonl"
    other.write_bytes(jsonl(row()))
    same.write_bytes(ROWS)
    assert grpo("rerun", made["id"], "--data", other).returncode == 1
    again = grpo("rerun", made["id"], "--data", same, "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["method"] == made["method"]
