"""A pretended device that is too small: what is refused, what is repeated, what is sized by free memory."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_engine.__main__ import run as run_engine
from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import RolloutsRecorded
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.run.build import build_loop
from grpo_engine.training.trainer import Trainer
from tests.engine.device.jobs import counted_turns, job
from tests.engine.device.pretended import pretended_cuda

KILOBYTE = 1024
NO_COPY = 1500 * KILOBYTE
"""Free memory in which decoding uses the layers as they are, because a copy would take too much of it."""


@pytest.fixture
def config(model_folder: Callable[[str], Path], tmp_path: Path) -> RunConfig:
    """A probe of four groups of four completions, two groups at a time."""
    return job(tmp_path, model_folder("qwen3"), "probe", device="cuda")


def sampled(
    config: RunConfig, run_dir: Path, *, largest: int | None = None, free: int = 2**37
) -> tuple[list[tuple[int, ...]], list[int], int]:
    """Tokens of all completions, rows of each decoded token, and the sample budget at the end.

    `largest`: bytes of an allocation that does not fit; `free`: bytes of the device. Both after loading.
    """
    with pretended_cuda() as seen, counted_turns() as turns:
        loop = build_loop(config, run_dir)
        seen.largest_allocation, seen.free_bytes = largest, free
        turns.clear()
        events = list(loop.run(lambda: False))
    recorded = [event for event in events if isinstance(event, RolloutsRecorded)]
    tokens = [each.token_ids for event in recorded for group in event.groups for each in group.completions]
    assert isinstance(loop.method.sampler, TorchSampler)
    return tokens, turns, loop.method.sampler.sample_budget


def test_out_of_memory_while_sampling_takes_fewer_rows_and_draws_the_same(
    config: RunConfig, tmp_path: Path
) -> None:
    """The keys of eight rows take 16 KB in each layer; a probe's greedy rows, whose prompts are not shared,
    halve the budget again."""
    tokens, turns, budget = sampled(config, tmp_path / "large", free=NO_COPY)
    assert (max(turns), budget) == (8, 8)
    found, turns, budget = sampled(config, tmp_path / "small", largest=12 * KILOBYTE, free=NO_COPY)
    assert (max(turns), budget) == (4, 2)
    assert found == tokens


def test_no_more_groups_are_decoded_than_fit_the_free_memory(config: RunConfig, tmp_path: Path) -> None:
    tokens, _, _ = sampled(config, tmp_path / "large")
    found, turns, budget = sampled(config, tmp_path / "small", free=100 * KILOBYTE)
    assert (max(turns), budget) == (4, 8)
    assert found == tokens


def test_a_model_that_does_not_fit_fails_once_with_both_figures(config: RunConfig, tmp_path: Path) -> None:
    with pretended_cuda() as seen:
        seen.free_bytes = 100_000
        assert run_engine(config, tmp_path, lambda: False) == 1
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    failed = json.loads(lines[-1])
    assert (failed["type"], failed["code"]) == ("failed", "out_of_memory")
    assert failed["message"] == "the weights of tiny need 0.00042 GB, and cuda has 0.0001 GB free"


def test_out_of_memory_elsewhere_in_loading_fails_once_with_torchs_figures(
    config: RunConfig, tmp_path: Path
) -> None:
    with pretended_cuda() as seen:
        seen.largest_allocation = 100
        assert run_engine(config, tmp_path, lambda: False) == 1
    failed = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[-1])
    assert failed["message"] == "tiny does not fit the device's memory while it is loaded"
    assert "Tried to allocate" in failed["evidence"][0]


def test_the_sampler_rests_before_training_memory_is_tried(
    model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr(TorchSampler, "rest", lambda _: {str(order.append("rest")): 0.0})
    monkeypatch.setattr(Trainer, "probe_memory", lambda _: order.append("probe"))
    with pretended_cuda():
        build_loop(
            job(tmp_path, model_folder("qwen3"), "lora", device="cuda"), tmp_path / "run"
        ).method.prepare()
    assert order == ["rest", "probe"]
