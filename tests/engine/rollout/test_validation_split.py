"""`validation_split` in runs: each row is on one side, keeps its number, and stays there after a resume."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.job import ProbeSize, RunConfig
from grpo_engine.contract.errors import DatasetError
from grpo_engine.contract.events import BaseEvent, Evaluated, RolloutsRecorded
from grpo_engine.rollout.dataset import held_out_numbers
from grpo_engine.run.build import build_loop
from tests.engine.conftest import write_rows
from tests.engine.rollout.test_evaluation import run


def rows_of(events: Sequence[BaseEvent], split: str) -> set[int]:
    recorded = [event for event in events if isinstance(event, RolloutsRecorded) and event.split == split]
    return {group.row for event in recorded for group in event.groups}


def with_split(config: RunConfig, split: float = 0.25) -> RunConfig:
    return config.model_copy(update={"validation_split": split, "validation_file": None})


def test_held_out_rows_are_evaluated_and_never_trained_on_even_after_a_resume(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = with_split(make_config(n_steps=4, eval_interval=2, prompts_per_step=3))
    held_out = held_out_numbers(config)
    assert len(held_out) == 3
    whole = run(config, tmp_path / "whole")
    stopped = [*run(config, tmp_path / "stopped", until=2), *run(config, tmp_path / "stopped")]
    for events in (whole, stopped):
        assert rows_of(events, "validation") == held_out
        assert rows_of(events, "train") == set(range(12)) - held_out
        assert {e.metrics["num_rows"] for e in events if isinstance(e, Evaluated)} == {3.0}


def test_a_probe_samples_training_rows_only(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    config = with_split(make_config()).model_copy(update={"probe": ProbeSize(prompts=12)})
    assert rows_of(run(config, tmp_path), "train") == set(range(12)) - held_out_numbers(config)


def test_a_supervised_run_keeps_its_rows_apart(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"{n}+{n}="}, {"role": "assistant", "content": str(n)}]}
        for n in range(8)
    ]
    given = with_split(make_config(), 3).model_dump(mode="json")
    settings = {"n_steps": 1, "batch_size": 2, "lora": {"rank": 4}}
    given["method"] = {"type": "supervised", "supervised": {"hyperparameters": settings}}
    given["training_file"] = str(write_rows(tmp_path / "demonstrations.jsonl", rows))
    config = RunConfig.model_validate(given)
    trainer: Any = build_loop(config, tmp_path).method
    assert {row.row for row in trainer.validation} == held_out_numbers(config)
    assert {row.row for row in trainer.source.prompts} == set(range(8)) - held_out_numbers(config)


def test_a_split_that_leaves_one_side_empty_is_refused(make_config: Callable[..., RunConfig]) -> None:
    for split, held_out in ((0.01, 0), (12, 12)):
        with pytest.raises(DatasetError, match=f"holds out {held_out} of 12 rows"):
            held_out_numbers(with_split(make_config(), split))
