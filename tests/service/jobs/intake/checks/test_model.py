"""The base model of a job: files that are damaged or elsewhere, and models that the engine does not load."""

import json
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import reinforcement, request, upload
from tests.service.jobs.intake.test_preflight import refused, validated

pytestmark = [on_sqlite, pytest.mark.usefixtures("model")]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("config.json", '{"model_type": ', "config.json cannot be read: Expecting value"),
        ("config.json", "[]", "its config.json is not a JSON object"),
        ("config.json", "[" * 100_000, "config.json cannot be read"),
        ("tokenizer.json", "{}", "tokenizer.json cannot be read"),
        ("tokenizer_config.json", "{", "tokenizer_config.json cannot be read"),
        ("model.safetensors", "version https://git-lfs.github.com/spec/v1", "model.safetensors is a pointer"),
        ("pytorch_model.bin", "", "its weights are in pytorch_model.bin; only safetensors are loaded"),
    ],
)
def test_a_model_whose_files_no_worker_could_load_is_refused(
    client: TestClient, database: Database, settings: Settings, file: str, content: str, reason: str
) -> None:
    (settings.models_dir / "tiny" / file).write_text(content)
    error = refused(client, database, request(upload(client)))
    assert (error["param"], error["code"]) == ("model", "model_not_supported")
    assert error["message"].startswith(f"model: cannot be loaded: {reason}")


@pytest.mark.parametrize(
    ("stored", "quantization", "reason"),
    [
        ("awq", None, "its weights are stored quantised (awq); use the unquantised model"),
        ("mxfp4", "nf4", "its weights are stored quantised (mxfp4); set quantization to null"),
        ("mxfp4", None, None),
        ("fp8", None, None),
    ],
)
def test_a_model_with_quantised_weights_is_accepted_if_they_can_be_converted(
    client: TestClient, settings: Settings, stored: str, quantization: str | None, reason: str | None
) -> None:
    file = settings.models_dir / "tiny" / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "quantization_config": {"quant_method": stored}}))
    report = validated(client, request(upload(client), method=reinforcement(quantization=quantization)))
    found = [problem["message"] for problem in report["problems"] if problem["param"] == "model"]
    assert found == ([] if reason is None else [f"model: cannot be loaded: {reason}"])


def test_a_model_without_tokenizer_on_this_machine_is_a_warning(
    client: TestClient, settings: Settings
) -> None:
    (settings.models_dir / "tiny" / "tokenizer.json").unlink()
    report = validated(client, request(upload(client)))
    assert report["valid"] is True
    assert [warning["code"] for warning in report["warnings"]] == ["lengths_unchecked"]


def test_a_vision_language_model_is_refused_unless_its_language_model_loads_alone(
    client: TestClient, database: Database, settings: Settings
) -> None:
    path = settings.models_dir / "tiny" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "model_type": "llava", "vision_config": {}}))
    error = refused(client, database, request(upload(client)))
    assert (error["param"], error["code"]) == ("model", "model_not_supported")
    assert (
        "is a vision-language model (llava), whose language model cannot be loaded alone" in error["message"]
    )
    for kind in ("gemma3", "qwen3_vl"):
        path.write_text(json.dumps({**config, "model_type": kind, "vision_config": {}}))
        assert validated(client, request(upload(client)))["valid"], kind


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        ({"is_encoder_decoder": True, "model_type": "t5"}, "is an encoder-decoder model (t5)"),
        ({"architectures": ["BertForMaskedLM"]}, "is not a causal language model (BertForMaskedLM)"),
        (
            {"architectures": ["LlamaForSequenceClassification"]},
            "is not a causal language model (LlamaForSequ",
        ),
        ({"architectures": ["LlamaForCausalLM"]}, None),
        ({"architectures": None}, None),
        ({"architectures": "LlamaModel"}, None),
    ],
)
def test_a_model_that_is_not_a_causal_language_model_is_refused(
    client: TestClient, settings: Settings, stated: dict[str, Any], reason: str | None
) -> None:
    path = settings.models_dir / "tiny" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | stated))
    problems = [each["message"] for each in validated(client, request(upload(client)))["problems"]]
    assert len(problems) == (reason is not None)
    assert reason is None or problems[0].startswith(f"model: {reason}")


def test_unknown_lengths_are_a_warning(client: TestClient, app: FastAPI) -> None:
    app.state.catalog.add("hub", "Qwen/Qwen3-0.6B")
    report = validated(client, request(upload(client), model="hub"))
    assert report["valid"] is True
    assert [warning["code"] for warning in report["warnings"]] == ["lengths_unchecked"]


def test_the_path_of_a_missing_folder_is_not_shown(client: TestClient, app: FastAPI) -> None:
    app.state.catalog.file.write_text(json.dumps({"away": {"path": "/mnt/private/away"}}))
    (warning,) = validated(client, request(upload(client), model="away"))["warnings"]
    reason = "the model away is not on the service's machine"
    assert warning["message"] == f"Row lengths were not checked: {reason}."
