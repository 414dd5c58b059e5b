"""`?format=merged`: a model that loads without PEFT, with the numbers that peft would give it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import load_file

from examples.tiny_model import Family
from service.jobs.model import names
from service.jobs.model.states import JobState
from service.jobs.results.merging import layout
from service.platform.db import Database
from service.platform.tables.core import Job
from service.settings import Settings
from tests.service.job_samples import add_artifact, add_checkpoint, add_job, expanded
from tests.service.jobs.results.merge_samples import (
    adapter_beside_base,
    add_adapter_job,
    add_job_with_base,
    logits,
    make_adapter,
    make_base,
    merged,
    packed,
    tensors_of,
    unpacked,
)

LAYER = "model.layers.1.mlp.down_proj"


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """One database is enough: no test here is about queries."""
    return sqlite_url


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter; beside it, in `base`, the model that it belongs to."""
    return adapter_beside_base(tmp_path_factory.mktemp("merged"))


@pytest.fixture
def job_id(settings: Settings, database: Database, adapter: Path) -> str:
    return add_job_with_base(settings, database, adapter)


@pytest.mark.parametrize(
    ("family", "shard_bytes"), [("qwen3", None), ("llama", 40_000), ("gpt2", None)], ids=str
)
def test_the_merged_model_answers_as_base_and_adapter_do(
    client: TestClient,
    settings: Settings,
    database: Database,
    tmp_path: Path,
    family: Family,
    shard_bytes: int | None,
) -> None:
    base = make_base(settings.models_dir / "tiny", family, shard_bytes=shard_bytes)
    adapter = make_adapter(base, tmp_path / "adapter")
    answer = merged(client, add_adapter_job(settings, database, adapter))
    assert answer.status_code == 200, answer.text
    folder = unpacked(answer.content, tmp_path / "merged")
    torch.testing.assert_close(logits(folder), logits(base, adapter), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits(folder), logits(base), atol=1e-3)
    assert len(list(folder.glob("*.safetensors"))) == len(list(base.glob("*.safetensors")))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_each_weight_is_the_nearest_one_of_its_type_to_the_sum(
    client: TestClient,
    settings: Settings,
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: torch.dtype,
) -> None:
    monkeypatch.setattr(layout, "BLOCK_BYTES", 1000)  # of several blocks each
    base = make_base(settings.models_dir / "tiny", dtype=dtype)
    adapter = make_adapter(base, tmp_path / "adapter")
    answer = merged(client, add_adapter_job(settings, database, adapter))
    before, after = tensors_of(base), tensors_of(unpacked(answer.content, tmp_path / "merged"))
    pairs = {
        name.removeprefix("base_model.model."): each
        for name, each in load_file(adapter / "adapter_model.safetensors").items()
    }
    for name, weight in before.items():
        layer = name.removesuffix(".weight")
        expected = weight
        if f"{layer}.lora_A.weight" in pairs:
            delta = 2.0 * (pairs[f"{layer}.lora_B.weight"] @ pairs[f"{layer}.lora_A.weight"])
            expected = (weight.float() + delta).to(dtype)
            assert not torch.equal(expected, weight)
        assert torch.equal(after[name], expected), name
    assert before.keys() == after.keys()


def test_the_archive_holds_the_model_s_files_with_a_card_that_says_what_it_is(
    client: TestClient, settings: Settings, job_id: str, tmp_path: Path
) -> None:
    base = settings.models_dir / "tiny"
    (base / "pytorch_model.bin").write_bytes(b"the same weights in another format")
    (base / "README.md").write_text("# The base")
    answer = merged(client, job_id)
    folder = unpacked(answer.content, tmp_path / "merged")
    kept = {path.name for path in base.iterdir()} - {"pytorch_model.bin"}
    assert {path.name for path in folder.iterdir()} == kept | {"manifest.json"}
    for name in kept - {"README.md", "model.safetensors"}:
        assert (folder / name).read_bytes() == (base / name).read_bytes()
    card = (folder / "README.md").read_text()
    assert "library_name: transformers" in card
    assert "base_model:finetune:tiny" in card
    assert "# A LoRA adapter merged into tiny" in card
    assert "vllm serve ./ --served-model-name tuned" in card
    assert "PeftModel" not in card
    assert json.loads((folder / "manifest.json").read_text())["weights"] == "merged"


def test_an_adapter_on_an_earlier_job_s_whole_weights_is_merged_into_these(
    client: TestClient, settings: Settings, database: Database, adapter: Path, tmp_path: Path
) -> None:
    make_base(settings.models_dir / "tiny")
    whole = make_base(tmp_path / "whole", shard_bytes=40_000)
    parent = add_job(database, JobState.SUCCEEDED, method=expanded(lora="full"))
    name = names.fine_tuned_model("tiny", "tenant-a", None, parent)
    with database.transaction() as session:
        session.get_one(Job, parent).fine_tuned_model = name
    add_artifact(settings, database, parent, "model", packed(whole))
    job_id = add_adapter_job(settings, database, adapter, model=name)
    answer = merged(client, job_id)
    assert answer.status_code == 200, answer.text
    folder = unpacked(answer.content, tmp_path / "merged")
    torch.testing.assert_close(logits(folder), logits(whole, adapter), atol=1e-5, rtol=1e-5)
    half = len(answer.content) // 2
    part = merged(client, job_id, headers={"range": f"bytes={half}-"})
    assert part.content == answer.content[half:]


def test_a_checkpoint_can_be_merged(
    client: TestClient, settings: Settings, database: Database, adapter: Path, job_id: str, tmp_path: Path
) -> None:
    other = make_adapter(adapter.with_name("base"), tmp_path / "other", lora_alpha=2)
    checkpoint = add_checkpoint(settings, database, job_id, 5, packed(other))
    final, early = merged(client, job_id), merged(client, job_id, checkpoint=checkpoint)
    assert (final.headers["x-step"], early.headers["x-step"]) == ("10", "5")
    assert early.headers["etag"] != final.headers["etag"]
    assert f'filename="{job_id}-step-5-merged.tar"' in early.headers["content-disposition"]
    weights = tensors_of(unpacked(early.content, tmp_path / "early"))[f"{LAYER}.weight"]
    base = tensors_of(settings.models_dir / "tiny")[f"{LAYER}.weight"]
    pairs = load_file(other / "adapter_model.safetensors")
    halves = [pairs[f"base_model.model.{LAYER}.lora_{half}.weight"] for half in "BA"]
    assert torch.equal(weights, base + 0.5 * (halves[0] @ halves[1]))


def test_a_job_that_trained_all_weights_has_them_whole_already(
    client: TestClient, settings: Settings, database: Database
) -> None:
    job_id = add_job(database, JobState.SUCCEEDED, method=expanded(lora="full"))
    add_artifact(settings, database, job_id, "model", b"the whole model")
    answer = merged(client, job_id)
    assert (answer.content, answer.headers["content-type"]) == (b"the whole model", "application/gzip")
