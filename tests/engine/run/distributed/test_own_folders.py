"""Ranks with run directories of their own, as on several hosts, end with the result of a single process."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from examples.tiny_model import make_model
from grpo_engine.config.job import RunConfig
from grpo_engine.contract import manifest
from tests.engine.conftest import DIGITS, cut, largest_difference, sum_rows, write_rows
from tests.engine.processes import events, run_here, wait_for_step
from tests.engine.ranks import engine_ranks
from tests.engine.run.distributed.gang import write_adapter
from tests.engine.run.distributed.runs import moments_of

TOLERANCE = 1e-6
LAST_STEP = 6
LORA: dict[str, Any] = {"lora": {"rank": 4}, "learning_rate": 1e-4}
FULL: dict[str, Any] = {"lora": "full", "learning_rate": 2e-5, "beta": 0.1}
CASES: dict[str, tuple[dict[str, Any], str, int, int]] = {
    "lora": (LORA, "replicated", 2, 3),
    "full": (FULL, "replicated", 3, 2),
    "sharded_lora": (LORA, "fsdp", 3, 2),
    "sharded_full": (FULL, "fsdp", 2, 3),
}
"""Name → hyperparameters, sharding, ranks before and after the stop."""
FILES = ("train.jsonl", "validation.jsonl", "other.jsonl")


def config_of(hyperparameters: dict[str, Any]) -> RunConfig:
    """A job whose files are all named relative to the run directory."""
    settings = {
        "n_steps": LAST_STEP,
        "prompts_per_step": 4,
        "group_size": 4,
        "max_completion_tokens": 8,
        "adam_epsilon": 1e-6,
        "eval_interval": 2,
        "eval_temperature": 1.0,
        "checkpoint_interval": 1,
        "max_checkpoints": 1,
        **hyperparameters,
    }
    retention = [{"name": "other", "file": "file-other"}]
    method = {"grader": DIGITS, "retention": retention, "hyperparameters": settings}
    return RunConfig.model_validate(
        {
            "job_id": "ftjob-test",
            "seed": 7,
            "model": {"name": "tiny", "path": "./model", "adapter": "./parent_adapter"},
            "training_file": "./train.jsonl",
            "validation_file": "./validation.jsonl",
            "retention_files": {"other": "./other.jsonl"},
            "method": {"type": "reinforcement", "reinforcement": method},
            "runtime": {"device": "cpu"},
        }
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory before its run: base model, adapter of an earlier job, rows."""
    folder = tmp_path_factory.mktemp("source")
    make_model(folder / "model", hidden=64, layers=2, seed=3)
    for number, name in enumerate(FILES):
        write_rows(folder / name, sum_rows(12 - number))
    write_adapter(folder / "model", folder / "parent_adapter")
    return folder


def hosts(
    source: Path, folder: Path, config: RunConfig, num_ranks: int, given: Sequence[Path] = ()
) -> list[Path]:
    """A prepared run directory for each rank, in which its engine starts. `given`: a checkpoint's parts."""
    content = cut(config, ranks=num_ranks).model_dump_json()
    made = [folder / f"host-{rank}" for rank in range(num_ranks)]
    for host in made:
        shutil.copytree(source, host)
        (host / "config.json").write_text(content)
        for part in given:
            shutil.copytree(part, host / "checkpoints" / part.name, dirs_exist_ok=True)
    return made


def checkpoints(folder: Path) -> list[Path]:
    return sorted((folder / "checkpoints").glob("step-*"))


def weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    (path,) = [*checkpoint.glob("adapter/*.safetensors"), *checkpoint.glob("model/*.safetensors")]
    return load_file(path) | moments_of(checkpoint)


def together(checkpoint: Path, parts: Sequence[Path], target: Path) -> Path:
    """A copy of the first host's checkpoint with the shards of all hosts."""
    for part in (checkpoint, *parts):
        shutil.copytree(part, target / checkpoint.name, dirs_exist_ok=True)
    return target / checkpoint.name


def assert_each_host_has_its_shard(parts: Sequence[Path]) -> None:
    """Of one checkpoint, on each host: only what its rank has written, and the first has the manifest."""
    names = [f"optimizer/rank-0000{rank}-of-0000{len(parts)}.safetensors" for rank in range(len(parts))]
    for part, name in zip(parts, names, strict=True):
        assert [path.name for path in (part / manifest.SHARDS).iterdir()] == [Path(name).name]
    sizes = [(part / name).stat().st_size for part, name in zip(parts, names, strict=True)]
    assert max(sizes) < 0.6 * sum(sizes)
    first, *others = parts
    assert not (first / manifest.MOMENTS).exists()
    files = manifest.verify(first, "ftjob-test", may_lack_shards=True)["files"]
    assert {name: files[name]["size"] for name in files if name in names} == dict(
        zip(names, sizes, strict=True)
    )
    assert manifest.shards_elsewhere(first, files).keys() == set(names[1:])
    with pytest.raises(manifest.DamagedCheckpoint, match=r"rank-0000\d-of-0000\d.safetensors' is missing"):
        manifest.verify(first, "ftjob-test")
    for part in others:
        assert {path.name for path in part.iterdir()} == {"optimizer"}


def found(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in events(folder) if event["type"] == kind]


def rewards(folder: Path) -> list[tuple[int, str, float]]:
    """Of each evaluation: step, set, mean reward."""
    return [(each["step"], each["name"], each["metrics"]["reward"]) for each in found(folder, "evaluated")]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_ranks_with_folders_of_their_own_stop_and_continue_as_one_process(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    hyperparameters, sharding, before, after = CASES[name]
    config = config_of(hyperparameters)
    (one,) = hosts(source, tmp_path / "one", config, 1)
    monkeypatch.chdir(one)
    run_here(config, Path())

    config = cut(config, sharding=sharding)
    first = hosts(source, tmp_path / "before", config, before)
    with engine_ranks(first, GRPO_FAULT="step.trained:sleep=1@3") as ranks:
        wait_for_step(first[0], 3)
        ranks.terminate()
        assert ranks.wait() == [0] * before
    newest = checkpoints(first[0])[-1]
    parts = [newest]
    if sharding == "fsdp":
        parts = [host / "checkpoints" / newest.name for host in first]
        assert_each_host_has_its_shard(parts)
        assert all(len(checkpoints(host)) <= 3 for host in first)
    second = hosts(source, tmp_path / "after", config, after, parts)
    given = {path.name for path in second[0].iterdir()}
    with engine_ranks(second) as ranks:
        assert ranks.wait() == [0] * after

    (stopped,) = found(first[0], "stopped")
    (started,) = found(second[0], "started")
    assert 3 <= stopped["step"] == started["resumed_from_step"] < LAST_STEP
    (expected,), (finished,) = found(one, "finished"), found(second[0], "finished")
    assert finished["best_step"] == expected["best_step"] > stopped["step"]
    assert finished["best_path"] == expected["best_path"]
    assert [each.name for each in checkpoints(second[0])] == [each.name for each in checkpoints(one)]
    assert [*rewards(first[0]), *rewards(second[0])] == rewards(one)
    last = checkpoints(second[0])[-1]
    if sharding == "fsdp":
        last = together(last, [host / "checkpoints" / last.name for host in second[1:]], tmp_path / "last")
    assert largest_difference(weights(checkpoints(one)[-1]), weights(last)) <= TOLERANCE
    for rank, folder in enumerate(second[1:], 1):
        assert {path.name for path in folder.iterdir()} == {*given, f"rank-{rank}.log"}
        kept = checkpoints(second[0]) if sharding == "fsdp" else [newest]
        assert [each.name for each in checkpoints(folder)] == [each.name for each in kept]
