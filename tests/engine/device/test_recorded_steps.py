"""Recorded steps in fixed buffers give what steps without a recording give, whichever rows leave and join."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grpo_engine.config.job import ModelSource, SupervisedHyperparameters
from grpo_engine.models.loading import load_policy
from grpo_engine.rollout.sampler import fixed_cache
from grpo_engine.rollout.sampler.decoding import Kernels, OwnLayers, SharedDecoder
from grpo_engine.rollout.sampler.fixed_cache import BufferSizes, FixedCache, bucket
from tests.engine.device.pretended import pretended_cuda
from tests.engine.device.seen import CUDA, Seen


class Pair:
    """A decoder that records and one that does not, fed the same."""

    def __init__(self, model: Path, room: BufferSizes, seen: Seen) -> None:
        settings = SupervisedHyperparameters.model_validate({})
        source = ModelSource(name="tiny", path=str(model))
        policy = load_policy(source, settings, CUDA, torch.float32, seed=5)
        assert policy.fast is not None
        self.seen, self.num_rows = seen, 0
        self.decoders = [SharedDecoder(policy.model, Kernels(policy.fast)) for _ in range(2)]
        self.decoders[0].reserve(room)
        self.generator = torch.Generator().manual_seed(0)

    def start(self, prompts: Sequence[Sequence[int]], group_size: int) -> None:
        self.num_rows = len(prompts) * group_size
        assert self._difference(*(each.start(prompts, group_size) for each in self.decoders)) < 1e-6

    def join(self, prompts: Sequence[Sequence[int]], group_size: int) -> None:
        self.num_rows += len(prompts) * group_size
        assert self._difference(*(each.join(prompts, group_size) for each in self.decoders)) < 1e-6

    def keep(self, *rows: int) -> None:
        self.num_rows = len(rows)
        for each in self.decoders:
            each.keep(torch.tensor(rows))

    def step(self, count: int) -> float:
        """Largest difference of the steps' logits."""
        found = []
        for _ in range(count):
            tokens = torch.randint(6, 60, (self.num_rows,), generator=self.generator).to(CUDA)
            found.append(self._difference(*(each.step(tokens) for each in self.decoders)))
        return max(found)

    @property
    def replays(self) -> list[int]:
        return [graph.replays for graph in self.seen.graphs]

    def _difference(self, found: Tensor, expected: Tensor) -> float:
        assert found.shape == expected.shape
        return float((found - expected).abs().max())


SIZES = BufferSizes(rows=8, group_size=2, prompts=6, prompt_tokens=4, tokens=40)


@pytest.fixture
def pair(model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    monkeypatch.setattr(fixed_cache, "FEWEST_ROWS", 2)
    with pretended_cuda() as seen, torch.no_grad():
        yield Pair(model_folder("qwen3"), SIZES, seen)


def test_each_size_of_the_batch_runs_once_and_is_recorded_once(pair: Pair) -> None:
    pair.start([[7, 8, 9], [10], [11]], 2)
    assert pair.step(5) < 1e-6
    assert pair.replays == [4]
    pair.keep(0, 3, 5)
    assert pair.step(5) < 1e-6
    assert pair.replays == [4, 4]
    pair.join([[11, 12, 13, 14]], 2)
    assert pair.step(5) < 1e-6
    assert pair.replays == [9, 4]
    pair.keep(4, 1)
    assert pair.step(5) < 1e-6
    pair.join([[5], [6, 7]], 1)
    assert pair.step(5) < 1e-6
    assert pair.replays == [9, 9, 4]
    pair.start([[7], [8, 9]], 2)
    assert pair.step(5) < 1e-6
    assert pair.replays == [9, 14, 4]
    assert pair.seen.violations() == {}


def test_rows_that_replace_others_use_their_columns_again(pair: Pair) -> None:
    """25 tokens in 10 columns; no row has more than 10."""
    pair.decoders[0].reserve(replace(SIZES, tokens=10))
    pair.start([[7, 8, 9], [10]], 1)
    for _ in range(5):
        assert pair.step(5) < 1e-6
        pair.keep(1)
        pair.join([[11, 12]], 1)
    assert pair.decoders[0].cache.length == 25
    assert len(pair.replays) == 1


def test_columns_are_added_by_doubling(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_cache, "FEWEST_COLUMNS", 10)
    pair.start([[7, 8, 9], [10]], 1)
    assert pair.step(40) < 1e-6
    assert [graph.replays for graph in pair.seen.graphs] == [9, 9, 19]


def test_a_recording_that_outlives_its_buffers_is_wrong(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = FixedCache.keep

    def moving(self: FixedCache, rows: Tensor) -> None:
        self.all_values = {layer: states.clone() for layer, states in self.all_values.items()}
        keep(self, rows)

    monkeypatch.setattr(FixedCache, "keep", moving)
    pair.start([[7, 8, 9], [10], [11]], 2)
    assert pair.step(5) < 1e-6
    pair.keep(1, 2, 3, 4, 5)
    assert pair.step(5) > 1e-4


def test_a_step_through_the_models_own_layers_is_not_recorded(pair: Pair) -> None:
    decoder = SharedDecoder(pair.decoders[0].model, OwnLayers(pair.decoders[0].model))
    decoder.reserve(SIZES)
    decoder.start([[7, 8]], 1)
    for _ in range(3):
        decoder.step(torch.tensor([9], device=CUDA))
    assert pair.seen.graphs == []


@pytest.mark.parametrize(
    ("count", "size"), [(512, 512), (257, 512), (256, 256), (33, 64), (9, 16), (8, 8), (1, 8)]
)
def test_a_bucket_is_the_smallest_half_that_holds_the_rows(count: int, size: int) -> None:
    assert bucket(count, 512, fewest=8) == size
