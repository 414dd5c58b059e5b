"""Recorded steps, by a recorder that runs anywhere: what it recorded it runs again on the very same tensors.

Left out: that a GPU's own recorder takes these kernels, which only a GPU can show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grpo_engine.models.fast import model, native
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.sampler import cache, decoding
from grpo_engine.rollout.sampler.decoding import Kernels, SharedDecoder
from grpo_engine.rollout.sampler.graphs import RecordedStep


class Recording(TorchDispatchMode):
    """As a CUDA graph: recording leaves no effect, replaying repeats all of them in the same memory."""

    made: list[Recording]

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self.replays = 0
        self.made.append(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "a recorded step waits for the device"
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.before.setdefault(id(given), (given, given.clone()))
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def undo(self) -> None:
        for tensor, value in self.before.values():
            tensor.copy_(value)

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, out in self.calls:
            found = func(*args, **kwargs)
            if all(result.alias_info is None for result in func._schema.returns):
                for old, new in zip(tree_leaves(out), tree_leaves(found), strict=True):
                    if isinstance(old, Tensor):
                        old.copy_(new)


@contextmanager
def recording(graph: Recording) -> Iterator[None]:
    with graph:
        yield
    graph.undo()


@pytest.fixture(autouse=True)
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    monkeypatch.setattr(Recording, "made", [], raising=False)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recording)
    monkeypatch.setattr(torch.cuda, "graph", recording)
    monkeypatch.setattr(native, "library", lambda: None)  # a GPU has operations of its own
    for module in (model, cache, decoding):
        monkeypatch.setattr(module, "reads_at_once", lambda _: False)
    return Recording.made


class OnDevice(Tensor):
    """Claims to be on a GPU; results computed from it do not."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    is_cuda = True


def tokens(*values: int) -> Tensor:
    return torch.tensor(values).as_subclass(OnDevice)


def test_a_step_runs_normally_then_is_recorded_then_replayed(recordings: list[Recording]) -> None:
    total, runs = torch.zeros(2), []

    def step(given: Tensor) -> Tensor:
        runs.append(1)
        total.add_(given)
        return total * 10

    recorded = RecordedStep(step)
    assert recorded(torch.tensor([1.0, 2.0])).tolist() == [10, 20]
    assert (len(runs), len(recordings)) == (1, 0)
    assert recorded(torch.tensor([1.0, 1.0])).tolist() == [20, 30]
    assert recorded(torch.tensor([5.0, 0.0])).tolist() == [70, 30]
    assert recorded(torch.tensor([0.0, 1.0])).tolist() == [70, 40]
    assert len(runs) == 2
    assert [each.replays for each in recordings] == [3]


class Pair:
    """A decoder that records and one that does not, fed the same."""

    def __init__(self, policy: Policy) -> None:
        assert policy.fast is not None
        self.decoders = [SharedDecoder(policy.model, Kernels(policy.fast)) for _ in range(2)]
        self.generator = torch.Generator().manual_seed(0)
        self.rows = 0

    def start(self, prompts: Sequence[Sequence[int]], group_size: int) -> None:
        for each in self.decoders:
            each.start(prompts, group_size)
        self.rows = len(prompts) * group_size

    def join(self, prompts: Sequence[Sequence[int]], group_size: int) -> None:
        for each in self.decoders:
            each.join(prompts, group_size)
        self.rows += len(prompts) * group_size

    def keep(self, *rows: int) -> None:
        for each in self.decoders:
            each.keep(torch.tensor(rows))
        self.rows = len(rows)

    def room(self) -> int:
        """Steps until the cache is full."""
        return self.decoders[0].cache.capacity - self.decoders[0].cache.length

    def step(self, count: int) -> None:
        recorded, plain = self.decoders
        for _ in range(count):
            given = torch.randint(6, 60, (self.rows,), generator=self.generator).tolist()
            found, expected = recorded.step(tokens(*given)), plain.step(torch.tensor(given))
            assert torch.allclose(found, expected, atol=1e-6)


@torch.no_grad()
def test_a_recording_holds_until_rows_leave_join_or_outgrow_the_cache(
    make_policy: Callable[..., Policy],
    monkeypatch: pytest.MonkeyPatch,
    recordings: list[Recording],
) -> None:
    monkeypatch.setitem(cache.GROWTH, "cpu", 20)
    pair = Pair(make_policy())
    pair.start([[7, 8, 9], [10]], 2)
    pair.step(5)
    assert [each.replays for each in recordings] == [4]
    pair.keep(0, 2, 3)
    pair.step(5)
    assert [each.replays for each in recordings] == [4, 4]
    pair.join([[11, 12, 13, 14]], 2)
    pair.step(5)
    assert [each.replays for each in recordings] == [4, 4, 4]
    pair.step(pair.room())
    assert len(recordings) == 3
    pair.step(3)
    assert len(recordings) == 4
    pair.start([[7]], 2)
    pair.step(3)
    assert len(recordings) == 5
    assert recordings[-1].replays == 2


@torch.no_grad()
def test_a_step_through_the_models_own_layers_is_not_recorded(
    make_policy: Callable[..., Policy], recordings: list[Recording]
) -> None:
    policy = make_policy()
    decoder = SharedDecoder(policy.model, decoding.OwnLayers(policy.model))
    decoder.start([[7, 8]], 1)
    for _ in range(3):
        decoder.step(tokens(9))
    assert recordings == []
