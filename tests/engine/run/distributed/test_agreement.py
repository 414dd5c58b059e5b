"""Ranks that would start from different states end at once, with the reason."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.errors import RanksDisagreeError
from grpo_engine.files.atomic_folder import step_name
from grpo_engine.parallel.agreement import checksum_of, compare
from tests.engine.conftest import cut, sum_rows, write_rows
from tests.engine.processes import crash_here, events
from tests.engine.ranks import engine_ranks


@pytest.mark.parametrize(
    ("lora", "sharding", "kept"),
    [({"rank": 4}, "replicated", 1), ({"rank": 4}, "fsdp", 1), ("full", "replicated", None)],
)
def test_ranks_that_resume_at_different_steps_end_before_the_first_step(
    make_config: Callable[..., RunConfig], tmp_path: Path, lora: Any, sharding: str, kept: int | None
) -> None:
    """Full weights are exchanged while they are loaded: a rank without a checkpoint would not take part."""
    config = make_config(n_steps=9, checkpoint_interval=1, lora=lora)
    here, there, path = (tmp_path / name for name in ("here", "there", "config.json"))
    crash_here(config, here, after=3)
    there.mkdir()
    if kept is not None:
        step = Path("checkpoints") / step_name(kept)
        shutil.copytree(here / step, there / step)
    path.write_text(cut(config, ranks=2, device="cpu", sharding=sharding).model_dump_json())
    num_before = len(events(here))
    with engine_ranks([here, there], config=path) as ranks:
        assert ranks.wait() == [1, 1]
    *before, failed = events(here)[num_before:]
    assert [event["type"] for event in before] == ["phase"]
    assert (failed["type"], failed["code"]) == ("failed", "ranks_disagree")
    assert failed["message"].startswith("The ranks start with different values of step, checkpoint")
    found = [line.partition(",")[0] for line in failed["evidence"]]
    assert found == ["rank 0: step 2", f"rank 1: step {kept or 0}"]
    assert json.loads((there / "failed-rank-1.json").read_text())["evidence"] == failed["evidence"]


def test_ranks_with_different_rows_end_before_the_first_step(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = cut(make_config(), ranks=2, device="cpu")
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder, num_rows in zip(folders, (12, 11), strict=True):
        folder.mkdir()
        rows = write_rows(folder / "rows.jsonl", sum_rows(num_rows))
        given = config.model_copy(update={"training_file": str(rows)})
        (folder / "config.json").write_text(given.model_dump_json())
    with engine_ranks(folders) as ranks:
        assert ranks.wait() == [1, 1]
    failed = events(folders[0])[-1]
    assert failed["code"] == "ranks_disagree"
    assert failed["message"].startswith("The ranks start with different values of datasets: rank 0:")


def test_a_rank_that_waits_for_one_with_an_error_ends_without_a_failure_of_its_own(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = cut(make_config(), ranks=2, device="cpu")
    (tmp_path / "wrong.jsonl").write_text("{}\n")
    configs = [config, config.model_copy(update={"training_file": str(tmp_path / "wrong.jsonl")})]
    for rank, given in enumerate(configs):
        (tmp_path / str(rank)).mkdir()
        (tmp_path / str(rank) / "config.json").write_text(given.model_dump_json())
    with engine_ranks([tmp_path / "0", tmp_path / "1"]) as ranks:
        assert ranks.wait() == [1, 1]
    assert [event["type"] for event in events(tmp_path / "0")] == ["phase"]
    report = json.loads((tmp_path / "1" / "failed-rank-1.json").read_text())
    assert (report["code"], report["message"]) == ("engine_error", "KeyError: 'prompt'")


def test_a_fact_that_differs_is_named_with_the_value_of_each_rank() -> None:
    compare([{"step": 4, "weights": "a"}] * 3)
    with pytest.raises(RanksDisagreeError) as raised:
        compare([{"step": 4, "weights": "a"}, {"step": 4, "weights": "b"}])
    assert raised.value.message == (
        "The ranks start with different values of weights: rank 0: weights a; rank 1: weights b"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_checksum_changes_with_the_last_bit_of_a_weight(dtype: torch.dtype) -> None:
    weights = torch.linspace(-1, 1, 999).to(dtype)
    changed = weights.clone()
    changed[500] = torch.nextafter(changed[500], torch.tensor(9.0, dtype=dtype))
    assert checksum_of({"w": weights}) == checksum_of({"w": weights.clone()})
    assert checksum_of({"w": weights}) != checksum_of({"w": changed})
