"""A base model's fingerprint: it depends on the weights, not on how they are spread over files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.errors import BaseChangedError
from grpo_engine.contract.events import Started
from grpo_engine.files.fingerprint import PIECE_BYTES, fingerprint
from grpo_engine.run.build import build_loop
from tests.engine.conftest import trained

NUM_VALUES = PIECE_BYTES


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Two tensors, one of them smaller than a sampled piece."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "rope_theta": 1e4}')
    save_file({"a": torch.arange(4.0), "b": torch.arange(float(NUM_VALUES))}, folder / "model.safetensors")
    return folder


def change(model: Path, name: str, at: int) -> None:
    tensors = load_file(model / "model.safetensors")
    tensors[name][at] += 1
    save_file(tensors, model / "model.safetensors")


@pytest.mark.parametrize(("name", "at"), [("a", 3), ("b", 0), ("b", NUM_VALUES // 2), ("b", NUM_VALUES - 1)])
def test_other_weights_are_another_model(model: Path, name: str, at: int) -> None:
    before = fingerprint(model)
    change(model, name, at)
    assert fingerprint(model) != before


def test_another_configuration_is_another_model(model: Path) -> None:
    before = fingerprint(model)
    (model / "config.json").write_text('{"model_type": "llama", "rope_theta": 1e6}')
    assert fingerprint(model) != before


def test_neither_shards_nor_other_files_change_it(model: Path) -> None:
    before = fingerprint(model)
    tensors = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    places = {name: f"model-{number}.safetensors" for number, name in enumerate(tensors)}
    for name, place in places.items():
        save_file({name: tensors[name]}, model / place)
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    save_file(tensors, model / "consolidated.safetensors")
    assert fingerprint(model) == before


def test_a_job_reports_its_base_models_fingerprint_at_the_start(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config(n_steps=1)
    started, *_ = build_loop(config, tmp_path).run(lambda: True)
    assert isinstance(started, Started)
    assert started.base_fingerprint == fingerprint(Path(config.model.path))


def moved(config: RunConfig, folder: Path) -> tuple[RunConfig, Path]:
    """The job with a copy of its base, whose files the test may change."""
    shutil.copytree(config.model.path, folder)
    return config.model_copy(update={"model": config.model.model_copy(update={"path": str(folder)})}), folder


def trained_further(model: Path) -> None:
    path = model / "model.safetensors"
    save_file({name: value + 0.01 for name, value in load_file(path).items()}, path, {"format": "pt"})


def test_a_job_is_not_resumed_on_a_base_with_other_weights(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config, base = moved(make_config(n_steps=1), tmp_path / "base")
    run_dir = tmp_path / "run"
    trained(config, run_dir)
    trained_further(base)
    with pytest.raises(BaseChangedError, match="weights are not those that were trained on") as found:
        list(build_loop(config, run_dir).run(lambda: False))
    assert "Restore the model's original files" in found.value.hint


def test_an_adapter_is_refused_on_other_weights_than_those_in_its_manifest(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config, base = moved(make_config(n_steps=1), tmp_path / "base")
    adapter = tmp_path / "run" / "checkpoints" / "step-00000001" / "adapter"
    trained(config, tmp_path / "run")
    (adapter / "manifest.json").write_text(json.dumps({"model": {"fingerprint": fingerprint(base)}}))
    source = config.model.model_copy(update={"adapter": str(adapter)})
    config = config.model_copy(update={"model": source})
    build_loop(config, tmp_path / "further")
    trained_further(base)
    with pytest.raises(BaseChangedError, match="not those that were trained on"):
        build_loop(config, tmp_path / "further")
    (adapter / "manifest.json").unlink()
    build_loop(config, tmp_path / "further")  # without a manifest the base is unknown
