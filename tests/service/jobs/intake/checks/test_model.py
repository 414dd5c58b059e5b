"""The base model of a job: files that are damaged or elsewhere, and models that the engine does not load."""

import json
import os
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from tokenizers import Tokenizer

from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import jsonl, reinforcement, request, upload
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


@pytest.mark.parametrize(
    ("settings_file", "special", "model_type", "is_refused"),
    [
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, {}, "llama", True),
        ({"tokenizer_class": "TokenizersBackend", "eos_token": None}, {}, "llama", True),
        (
            {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": {"content": "</s>"}},
            {},
            "llama",
            False,
        ),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, {"eos_token": "</s>"}, "llama", False),
        ({"tokenizer_class": "LlamaTokenizer"}, {}, "llama", False),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, {}, "qwen2", False),
    ],
)
def test_a_tokenizer_without_an_end_of_sequence_token_is_refused(
    client: TestClient,
    settings: Settings,
    settings_file: dict[str, Any],
    special: dict[str, Any],
    model_type: str,
    is_refused: bool,
) -> None:
    folder = settings.models_dir / "tiny"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "a", **settings_file}))
    (folder / "special_tokens_map.json").write_text(json.dumps(special))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    reason = "model: cannot be loaded: its tokenizer has no end-of-sequence token; name one in tokenizer_"
    report = validated(client, request(upload(client)))
    assert report["valid"] is not is_refused
    assert [each["message"].startswith(reason) for each in report["problems"]] == [True] * is_refused


@pytest.mark.parametrize(
    ("last", "method", "place", "token"),
    [
        ({"role": "user", "content": "<tool> 4"}, reinforcement(), "messages", "'<tool>' (1)"),
        ({"role": "assistant", "content": "4"}, {"type": "supervised"}, "messages", "'</s>' (2)"),
    ],
    ids=["prompt", "end-of-sequence"],
)
def test_rows_with_tokens_that_the_model_lacks_are_refused(
    client: TestClient,
    settings: Settings,
    last: dict[str, str],
    method: dict[str, Any],
    place: str,
    token: str,
) -> None:
    folder = settings.models_dir / "tiny"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<tool>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    first = {"role": "user", "content": "What is 2+2?"}
    rows = jsonl({"messages": [first, last], "answer": "4"}, {"messages": [first, last], "answer": "4"})
    body = request(upload(client, rows), method=method)
    for num_embeddings in (3, 1):
        (folder / "config.json").write_text(json.dumps({"vocab_size": num_embeddings}))
        os.utime(folder / "config.json", (num_embeddings, num_embeddings))
        report = validated(client, body)
        assert report["valid"] is (num_embeddings == 3)
    assert [each["param"] for each in report["problems"]] == [
        f"training_file[{line}].{place}" for line in (1, 2)
    ]
    reason = (
        f"has the token {token}, but the model embeds only 1: remove it from the text, or add its embedding"
    )
    assert report["problems"][0]["message"].startswith(f"training_file[1].{place}: {reason}")


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
