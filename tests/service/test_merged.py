"""`GET …/adapter?format=merged`: a model that loads without PEFT, with the numbers that peft would give it."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient

from examples.tiny_model import Family
from service.db import Database
from service.settings import Settings
from tests.service.merge_samples import (
    add_adapter_job,
    logits,
    make_adapter,
    make_base,
    merged,
    tensors_of,
    unpacked,
)


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """One database is enough: no test here is about queries."""
    return sqlite_url


@pytest.fixture
def base(settings: Settings) -> Path:
    return settings.models_dir / "tiny"


@pytest.mark.parametrize(
    ("family", "shard_bytes"), [("qwen3", None), ("llama", 40_000), ("gpt2", None)], ids=str
)
def test_the_merged_model_answers_as_base_and_adapter_do(
    client: TestClient,
    settings: Settings,
    database: Database,
    tmp_path: Path,
    base: Path,
    family: Family,
    shard_bytes: int | None,
) -> None:
    make_base(base, family, shard_bytes=shard_bytes)
    adapter = make_adapter(base, tmp_path / "adapter")
    answer = merged(client, add_adapter_job(settings, database, adapter))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-length"] == str(len(answer.content))
    folder = unpacked(answer.content, tmp_path / "merged")
    torch.testing.assert_close(logits(folder), logits(base, adapter), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(logits(folder), logits(base), atol=1e-3)
    assert len(list(folder.glob("*.safetensors"))) == len(list(base.glob("*.safetensors")))
