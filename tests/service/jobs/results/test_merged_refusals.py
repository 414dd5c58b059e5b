"""Adapters and bases that do not fit are refused before the first byte, with a code that says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import load_file, save_file

from grpo_engine.files.fingerprint import fingerprint
from service.jobs.model import names
from service.jobs.model.states import JobState
from service.jobs.results.merging.archive import merged_archive
from service.jobs.results.merging.bases import Folder
from service.jobs.results.merging.errors import NotMergeable
from service.platform.db import Database
from service.platform.storage import open_storage
from service.platform.tables.core import Job
from service.settings import Settings
from tests.service.job_samples import MODEL, add_artifact, add_job, expanded
from tests.service.jobs.results.merge_samples import adapter_beside_base, add_adapter_job, merged, tensors_of

WEIGHTS = "adapter_model.safetensors"
LAYER = "base_model.model.model.layers.0.mlp.up_proj"


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """One database is enough: no test here is about queries."""
    return sqlite_url


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter; beside it, in `base`, the model that it belongs to."""
    return adapter_beside_base(tmp_path_factory.mktemp("merged"))


@pytest.fixture
def adapter(original: Path, tmp_path: Path) -> Path:
    """One that may be changed."""
    return Path(shutil.copytree(original, tmp_path / "adapter"))


@pytest.fixture
def base(original: Path, tmp_path: Path) -> Path:
    """The catalogue's model, which may be changed too."""
    return Path(shutil.copytree(original.with_name("base"), tmp_path / "home" / "models" / MODEL))


def refusal(base: Path, adapter: Path) -> tuple[str, str]:
    """Code and message."""
    with pytest.raises(NotMergeable) as error:
        merged_archive(Folder(base), adapter)
    return error.value.code, str(error.value)


Refused = Callable[..., tuple[int, str, str]]


@pytest.fixture
def refused(client: TestClient, settings: Settings, database: Database, adapter: Path) -> Refused:
    """Status, code and message of the merge of `adapter` as it is now."""

    def ask(**job: Any) -> tuple[int, str, str]:
        answer = merged(client, add_adapter_job(settings, database, adapter, **job))
        error = answer.json()["error"]
        return answer.status_code, error["code"], error["message"]

    return ask


def configure(adapter: Path, **config: Any) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))


def change_weights(adapter: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(adapter / WEIGHTS)
    change(tensors)
    save_file(tensors, adapter / WEIGHTS)


@pytest.mark.parametrize(
    "config",
    [
        {"use_dora": True},
        {"use_rslora": True},
        {"modules_to_save": ["lm_head"]},
        {"rank_pattern": {"q_proj": 2}},
        {"alpha_pattern": {"q_proj": 2}},
        {"bias": "all"},
        {"peft_type": "IA3"},
    ],
    ids=lambda config: next(iter(config)),
)
def test_what_the_engine_never_writes_is_named(base: Path, adapter: Path, config: dict[str, Any]) -> None:
    configure(adapter, **config)
    code, message = refusal(base, adapter)
    assert code == "not_mergeable"
    assert any(str(part) in message for part in (*config, *config.values()))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t: t.pop(f"{LAYER}.lora_A.weight"), "lora_A"),
        (
            lambda t: t.update({f"{LAYER}.lora_B.weight": torch.ones(7, 4)}),
            "is [96, 32], the adapter's (7, 32)",
        ),
        (lambda t: t.update({f"{LAYER}.lora_B.weight": torch.ones(96, 5)}), "ranks 4 and 5"),
        (lambda t: t[f"{LAYER}.lora_A.weight"].fill_(torch.nan), "not finite"),
        (
            lambda t: t.update({"base_model.model.x.lora_magnitude_vector": torch.ones(2)}),
            "no half of a pair",
        ),
        (
            lambda t: t.update(
                {f"base_model.model.x.y.lora_{half}.weight": torch.ones(4, 4) for half in "AB"}
            ),
            "no tensor x.y.weight",
        ),
        (lambda t: t.clear(), "empty"),
    ],
    ids=["half", "shape", "rank", "nan", "other", "nowhere", "empty"],
)
def test_pairs_that_fit_nowhere_are_refused(
    base: Path,
    adapter: Path,
    change: Callable[[dict[str, torch.Tensor]], object],
    told: str,
) -> None:
    change_weights(adapter, change)
    code, message = refusal(base, adapter)
    assert code == "not_mergeable"
    assert told in message


@pytest.mark.parametrize("is_tied", [True, False])
def test_an_output_layer_is_changed_only_where_it_is_no_embedding_too(
    base: Path, adapter: Path, tmp_path: Path, *, is_tied: bool
) -> None:
    tensors = load_file(base / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, base / "model.safetensors")
    config = json.loads((base / "config.json").read_text()) | {"tie_word_embeddings": is_tied}
    (base / "config.json").write_text(json.dumps(config))
    rows, columns = tensors["lm_head.weight"].shape
    pair = {"A": torch.ones(4, columns), "B": torch.ones(rows, 4)}
    added = {f"base_model.model.lm_head.lora_{half}.weight": each for half, each in pair.items()}
    change_weights(adapter, lambda found: found.update(added))
    if is_tied:
        assert "shares with its embedding" in refusal(base, adapter)[1]
    else:
        merged_archive(Folder(base), adapter).write(tmp_path / "merged")
        after = tensors_of(tmp_path / "merged")
        assert torch.equal(after["lm_head.weight"], tensors["lm_head.weight"] + 8)


def test_a_base_that_left_the_catalogue_is_named(refused: Refused) -> None:
    assert refused() == (
        422,
        "base_model_missing",
        "It cannot be merged: the model tiny is not in the catalogue any more.",
    )


def test_a_base_of_another_revision_is_refused(
    refused: Refused, adapter: Path, base: Path, settings: Settings
) -> None:
    place = {"tiny": {"path": str(base), "revision": "new"}}
    (settings.home / "models.json").write_text(json.dumps(place))
    configure(adapter, revision="old")
    status, code, message = refused()
    assert (status, code) == (422, "base_model_changed")
    assert "revision old" in message


def test_a_base_with_other_weights_than_at_the_jobs_start_is_refused(
    refused: Refused, adapter: Path, base: Path
) -> None:
    manifest = json.loads((adapter / "manifest.json").read_text())
    manifest["model"]["fingerprint"] = fingerprint(base)
    (adapter / "manifest.json").write_text(json.dumps(manifest))
    merged_archive(Folder(base), adapter)
    tensors = load_file(base / "model.safetensors")
    save_file({name: each * 1.01 for name, each in tensors.items()}, base / "model.safetensors")
    status, code, message = refused()
    assert (status, code) == (422, "base_model_changed")
    assert "other weights now than when the adapter was trained" in message


def test_a_base_that_only_workers_have_is_refused_with_a_way_out(
    refused: Refused, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (settings.home / "models.json").write_text(json.dumps({"tiny": {"path": "org/name"}}))
    status, code, message = refused()
    assert (status, code) == (422, "base_model_elsewhere")
    assert "grpo merge JOB --base FOLDER" in message


def no_weights(base: Path) -> None:
    (base / "model.safetensors").unlink()


def cut_off(base: Path) -> None:
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])


def not_safetensors(base: Path) -> None:
    (base / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0not json at all.")


def missing_shard(base: Path) -> None:
    (base / "model.safetensors").unlink()
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("damage", [no_weights, cut_off, not_safetensors, missing_shard])
def test_a_base_without_whole_weights_is_refused(
    base: Path, adapter: Path, damage: Callable[[Path], None]
) -> None:
    damage(base)
    assert refusal(base, adapter)[0] == "base_model_unusable"


def test_an_earlier_job_s_weights_that_storage_lost_are_named(
    client: TestClient, settings: Settings, database: Database, adapter: Path
) -> None:
    parent = add_job(database, JobState.SUCCEEDED, method=expanded(lora="full"))
    name = names.fine_tuned_model("tiny", "tenant-a", None, parent)
    with database.transaction() as session:
        session.get_one(Job, parent).fine_tuned_model = name
    file_id = add_artifact(settings, database, parent, "model", b"whole")
    job_id = add_adapter_job(settings, database, adapter, model=name)
    damaged = merged(client, job_id)
    open_storage(settings.storage_location).delete(f"files/{file_id}")
    lost = merged(client, job_id)
    codes = [(answer.status_code, answer.json()["error"]["code"]) for answer in (damaged, lost)]
    assert codes == [(422, "base_model_unusable"), (422, "base_model_missing")]


def test_a_quantised_base_is_refused(base: Path, refused: Refused) -> None:
    tensors = load_file(base / "model.safetensors")
    save_file({name: each.to(torch.int8) for name, each in tensors.items()}, base / "model.safetensors")
    status, code, message = refused()
    assert (status, code) == (422, "not_mergeable")
    assert "is I8: it is quantised" in message


def test_a_stored_adapter_that_is_damaged_is_refused(
    client: TestClient, settings: Settings, database: Database, base: Path
) -> None:
    job_id = add_job(database, JobState.SUCCEEDED)
    add_artifact(settings, database, job_id, "adapter", b"no archive")
    answer = merged(client, job_id)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, "content_damaged")


def test_a_job_without_an_adapter_yet_says_so(client: TestClient, database: Database, base: Path) -> None:
    answer = merged(client, add_job(database, JobState.RUNNING))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_adapter_yet")


def test_lessons_cannot_be_merged(client: TestClient, settings: Settings, database: Database) -> None:
    method = {"type": "training_free", "training_free": {"hyperparameters": {}}}
    job_id = add_job(database, JobState.SUCCEEDED, method=method)
    add_artifact(settings, database, job_id, "experiences", b"lessons")
    answer = merged(client, job_id)
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (
        "model_without_weights",
        "format",
    )


def test_another_tenant_s_job_does_not_exist(
    other_client: TestClient, settings: Settings, database: Database, adapter: Path, base: Path
) -> None:
    answer = merged(other_client, add_adapter_job(settings, database, adapter))
    assert answer.status_code == 404
