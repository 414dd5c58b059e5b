"""Checkpoints: complete or invisible, verified before use, the next older one if the newest is damaged."""

import errno
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from grpo_engine.config.job import RunConfig
from grpo_engine.contract import manifest
from grpo_engine.contract.errors import DiskFullError
from grpo_engine.contract.events import Started, Warned
from grpo_engine.models.policy import Policy
from grpo_engine.run.build import build_loop
from grpo_engine.training import checkpoint, policy_updater
from tests.engine.conftest import DIGITS, trained


@pytest.fixture
def finished(make_config: Callable[..., RunConfig], tmp_path: Path) -> tuple[RunConfig, Path]:
    """A run of three steps with a checkpoint at each."""
    config = make_config(checkpoint_interval=1)
    trained(config, tmp_path / "run")
    return config, tmp_path / "run" / "checkpoints"


def flip_a_byte(folder: Path) -> None:
    path = folder / "adapter" / "adapter_model.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def truncate(folder: Path) -> None:
    path = folder / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def lose_the_manifest(folder: Path) -> None:
    (folder / manifest.MANIFEST).unlink()


def point_outside(folder: Path) -> None:
    content = json.loads((folder / manifest.MANIFEST).read_text())
    content["files"]["../../secret"] = {"size": 0, "sha256": ""}
    (folder / manifest.MANIFEST).write_text(json.dumps(content))


def name_no_files(folder: Path) -> None:
    content = json.loads((folder / manifest.MANIFEST).read_text())
    (folder / manifest.MANIFEST).write_text(json.dumps({**content, "files": {}}))


def come_from_the_future(folder: Path) -> None:
    content = json.loads((folder / manifest.MANIFEST).read_text())
    (folder / manifest.MANIFEST).write_text(json.dumps({**content, "format": 99}))


def test_the_newest_is_used_and_the_oldest_are_gone(finished: tuple[RunConfig, Path]) -> None:
    config, folder = finished
    found, skipped = checkpoint.newest_valid(folder, config)
    assert found == folder / "step-00000003"
    assert skipped == []
    assert sorted(path.name for path in folder.iterdir()) == [f"step-{step:08d}" for step in (1, 2, 3)]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip_a_byte, "has the wrong sha256"),
        (truncate, "has the wrong size"),
        (lose_the_manifest, "it has no manifest"),
        (point_outside, "outside of the folder"),
        (name_no_files, "does not name every required file"),
        (come_from_the_future, "has an unknown format"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_with_a_warning(
    finished: tuple[RunConfig, Path], damage: Callable[[Path], None], reason: str
) -> None:
    config, folder = finished
    damage(folder / "step-00000003")
    events = list(build_loop(config, folder.parent).run(lambda: False))
    warned = [event.message for event in events if isinstance(event, Warned)]
    assert len(warned) == 1
    assert "step-00000003 was skipped" in warned[0]
    assert reason in warned[0]
    assert [event.resumed_from_step for event in events if isinstance(event, Started)] == [2]


def test_no_flipped_bit_of_a_manifest_crashes_or_passes_as_another_manifest(
    finished: tuple[RunConfig, Path],
) -> None:
    config, folder = finished
    path = folder / "step-00000003" / manifest.MANIFEST
    whole = path.read_bytes()
    files = json.loads(whole)["files"]
    for position in range(0, len(whole), 3):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        try:
            found = manifest.verify(path.parent, config.job_id, checkpoint.config_digest(config))
        except manifest.DamagedCheckpoint:
            continue
        assert found["files"] == files


def test_another_jobs_checkpoint_never_loads(finished: tuple[RunConfig, Path]) -> None:
    config, folder = finished
    found, skipped = checkpoint.newest_valid(folder, config.model_copy(update={"job_id": "ftjob-other"}))
    assert found is None
    assert all("belongs to another job" in sentence for sentence in skipped)


def test_a_checkpoint_of_another_host_loads_wherever_models_and_files_are(
    make_config: Callable[..., RunConfig],
) -> None:
    def on_host(root: str, **changes: Any) -> str:
        judge = {"type": "reward_model", "model": "rm", "path": f"{root}/rm", **changes}
        config = make_config(grader={"type": "multi", "graders": {"a": judge}, "calculate_output": "a"})
        model = config.model.model_copy(update={"path": f"{root}/base", "adapter": f"{root}/adapter"})
        return checkpoint.config_digest(
            config.model_copy(update={"model": model, "training_file": f"{root}/train.jsonl"})
        )

    assert on_host("/one") == on_host("/two")
    assert on_host("/one") != on_host("/one", revision="other")
    assert on_host("/one") != on_host("/one", model="other")


def test_a_configurations_digest_leaves_out_defaults(make_config: Callable[..., RunConfig]) -> None:
    """So a release that adds a setting continues the jobs of the release before it."""
    settings = {"beta": 0.5, "learning_rate": 1e-3}
    method = {"type": "reinforcement", "reinforcement": {"grader": DIGITS, "hyperparameters": settings}}
    config = RunConfig.model_validate(make_config().model_dump() | {"method": method})
    older = {"job_id": "ftjob-test", "seed": 7, "model": "qwen3", "method": method}
    digest = hashlib.sha256(json.dumps(older, sort_keys=True).encode()).hexdigest()
    assert checkpoint.config_digest(config) == digest


def test_a_full_disk_keeps_the_previous_checkpoint_and_leaves_nothing_half_written(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(checkpoint_interval=1)
    trainer = build_loop(config, tmp_path)
    list(trainer.run(lambda: trainer.state.step == 1))

    def full(policy: Policy, tensors: dict[str, Tensor], folder: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(policy_updater, "write_weights", full)
    with pytest.raises(DiskFullError, match="checkpoint of step 2"):
        list(build_loop(config, tmp_path).run(lambda: False))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]
    assert checkpoint.newest_valid(tmp_path / "checkpoints", config)[0] is not None


def test_equal_runs_write_equal_bytes(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    for name in ("a", "b"):
        trained(make_config(n_steps=2), tmp_path / name)
    for file in ("adapter/adapter_model.safetensors", "adapter/adapter_config.json", "state.json"):
        left = tmp_path / "a" / "checkpoints" / "step-00000002" / file
        right = tmp_path / "b" / "checkpoints" / "step-00000002" / file
        assert left.read_bytes() == right.read_bytes()
