"""Around the steps: evaluations, stopping, and a device that is too small."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.errors import DeviceMemoryError
from grpo_engine.contract.events import (
    Evaluated,
    Finished,
    PhaseChanged,
    RolloutsRecorded,
    Started,
    Stopped,
    Warned,
)
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import PackedBatch
from grpo_engine.run.build import build_loop
from tests.engine.conftest import cut, largest_difference, parameters_of, sum_rows, trained, write_rows


def test_held_out_rows_are_evaluated_before_during_and_after(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    held_out = write_rows(tmp_path / "held_out.jsonl", sum_rows(5))
    config = make_config(n_steps=4, eval_interval=2).model_copy(update={"validation_file": str(held_out)})
    events = list(build_loop(config, tmp_path).run(lambda: False))
    assert [event.step for event in events if isinstance(event, Evaluated)] == [0, 2, 4]
    assert {e.metrics["num_rows"] for e in events if isinstance(e, Evaluated)} == {5.0}
    recorded = [e for e in events if isinstance(e, RolloutsRecorded) and e.split == "validation"]
    assert [len(event.groups) for event in recorded] == [5, 5, 5]
    assert all(len(group.completions) == 1 for event in recorded for group in event.groups)


def test_a_stop_request_ends_at_the_step_boundary_with_a_checkpoint(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    trainer = build_loop(make_config(n_steps=5), tmp_path)
    events = list(trainer.run(lambda: trainer.state.step == 2))
    assert isinstance(events[-1], Stopped)
    assert events[-1].step == 2
    assert (tmp_path / "checkpoints" / "step-00000002" / "manifest.json").exists()


def test_a_stop_request_at_the_start_trains_and_evaluates_nothing(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    held_out = write_rows(tmp_path / "held_out.jsonl", sum_rows(5))
    config = make_config().model_copy(update={"validation_file": str(held_out)})
    events = list(build_loop(config, tmp_path).run(lambda: True))
    assert [type(event) for event in events] == [Started, PhaseChanged, Stopped]


def test_an_evaluation_that_a_stop_put_off_is_made_up_for(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    held_out = write_rows(tmp_path / "held_out.jsonl", sum_rows(5))
    config = make_config(n_steps=4, eval_interval=2).model_copy(update={"validation_file": str(held_out)})
    trainer = build_loop(config, tmp_path)
    stopped = list(trainer.run(lambda: trainer.state.step == 2))
    trainer = build_loop(config, tmp_path)
    resumed = list(trainer.run(lambda: trainer.state.step == 4))
    evaluated = [e.step for e in (*stopped, *resumed) if isinstance(e, Evaluated)]
    assert evaluated == [0, 2, 4]
    assert isinstance(resumed[-1], Finished), "after the last step, a stop request comes too late"


def test_out_of_memory_repeats_the_step_in_smaller_pieces_with_the_same_result(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(learning_rate=3e-4)
    whole = trained(config, tmp_path / "whole")
    run = Policy.logprobs

    def small_device(self: Policy, batch: PackedBatch, *arguments: Any, **options: Any) -> Any:
        if batch.input_ids.shape[1] > 100:
            raise torch.OutOfMemoryError("too large")
        return run(self, batch, *arguments, **options)

    monkeypatch.setattr(Policy, "logprobs", small_device)
    trainer = build_loop(cut(config, token_budget=512), tmp_path / "small")
    events = list(trainer.run(lambda: False))
    reported = [event.message for event in events if isinstance(event, Warned)]
    assert reported[:2] == [
        "out of memory: activations are recomputed in the backward pass",
        "out of memory: the step is repeated with 256 tokens per micro-batch",
    ]
    assert largest_difference(parameters_of(whole), parameters_of(trainer.method)) < 1e-6


def test_a_step_that_fits_in_no_piece_fails_as_out_of_memory(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = build_loop(make_config(), tmp_path)

    def no_memory(self: Policy, *arguments: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("far too large")

    monkeypatch.setattr(Policy, "logprobs", no_memory)
    with pytest.raises(DeviceMemoryError, match="step 1 does not fit") as caught:
        list(trainer.method.step(1))
    assert caught.value.evidence == ("far too large",)
    assert caught.value.code == "out_of_memory"
