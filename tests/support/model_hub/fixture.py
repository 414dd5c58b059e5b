"""A hub with a small model for the processes that a test starts."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.service.job_samples import make_model
from tests.support.model_hub.server import ModelHub, model_hub

ROOT = Path(__file__).parents[3]
WEIGHTS = bytes(range(256)) * 4096 * 24
STALL_AFTER, PRESENT = 15 * 2**20, 10 * 2**20
"""Bytes after which a response may stall; the client has stored whole pieces of 10 MiB by then."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelHub]:
    """`org/small` with a configuration, a tokenizer, 24 MiB of weights, and files that are not needed."""
    described = {path.name: path.read_bytes() for path in make_model(tmp_path / "original").iterdir()}
    more = {"model.safetensors": WEIGHTS, "modeling_small.py": b"import os", "pytorch_model.bin": b"pickle"}
    with model_hub(described | more) as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "2")
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        yield found
