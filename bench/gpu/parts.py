"""What the GPU set measures: its parts in the order of their importance, as plain data.

Boundary: names, sizes and shares of the time; who runs them is `bench.gpu.runner`, what is
measured `bench.gpu.child`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.trl.models import Shape

Kind = Literal["machine", "model", "train", "sample", "ours", "theirs"]
Sampler = Literal["torch", "vllm"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure's sizes: groups of `group_size` completions, each exactly `length` tokens."""

    prompts: int
    group_size: int
    prompt_tokens: int
    length: int
    tokens_at_a_time: int = 0
    """Training only: tokens of one micro-batch."""
    recompute: bool = False
    """Training only: compute each layer again in the backward pass instead of keeping it."""

    @property
    def completion_tokens(self) -> int:
        return self.prompts * self.group_size * self.length

    @property
    def tokens(self) -> int:
        """Each prompt once."""
        return self.completion_tokens + self.prompts * self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Part:
    """One child process."""

    name: str
    kind: Kind
    seconds: float
    """What it may take at most; with less than half of it left it is not begun."""
    shape: str = ""
    cells: tuple[Cell, ...] = ()
    sampler: Sampler = "torch"
    steps: Cell | None = None
    """An end-to-end run's sizes."""

    @property
    def needs(self) -> str:
        """The part that must be done before; none: empty."""
        return f"model-{self.shape}" if self.shape and self.kind != "model" else ""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A whole set's numbers."""

    shapes: dict[str, Shape]
    train: tuple[Cell, ...]
    sample: tuple[Cell, ...]
    steps: dict[tuple[str, Sampler], Cell]
    """By shape, and by the sampler that both engines have. TRL computes a prompt once for each
    completion, so the larger model gets fewer; and it generates slowly without vLLM, so tokens are fewer."""
    long_groups: dict[tuple[str, Sampler], Cell]
    """The same with larger groups: last, where time is left."""
    num_steps: int = 3
    passes: int = 3
    """Timed repetitions of a training cell, fewer where its time is short."""


def _row(prompts: int, group_size: int, length: int, row: int, prompt: int) -> Cell:
    """Completions that fill rows of `row` tokens exactly; their prompts come on top."""
    in_a_row = max(1, row // (group_size * length))
    return Cell(prompts, group_size, prompt, length, row + in_a_row * prompt)


def _train(row: int, prompt: int, groups: Sequence[tuple[int, int]]) -> tuple[Cell, ...]:
    """One sequence as long as the row, activations kept and recomputed; then groups."""
    alone = Cell(1, 1, prompt, row - prompt, row)
    recomputed = Cell(1, 1, prompt, row - prompt, row, recompute=True)
    rest = (_row(max(1, row // (size * length)), size, length, row, prompt) for size, length in groups)
    return (alone, recomputed, *rest)


FULL = Sizes(
    shapes={
        # Qwen3's own numbers
        "0.6b": Shape(hidden=1024, layers=28, heads=16, kv=8, head=128, inter=3072, vocab=151_936),
        "4b": Shape(hidden=2560, layers=36, heads=32, kv=8, head=128, inter=9728, vocab=151_936),
    },
    train=_train(16_384, 128, ((8, 1024), (16, 1024), (8, 4096), (16, 4096))),
    sample=(
        Cell(8, 8, 256, 1024),
        Cell(4, 16, 256, 1024),
        Cell(8, 8, 256, 4096),
        Cell(4, 16, 256, 4096),
    ),
    steps={
        ("0.6b", "torch"): Cell(4, 8, 256, 256),
        ("4b", "torch"): Cell(2, 8, 256, 256),
        ("0.6b", "vllm"): Cell(2, 8, 256, 1024),
        ("4b", "vllm"): Cell(1, 8, 256, 1024),
    },
    long_groups={
        ("0.6b", "torch"): Cell(2, 16, 256, 256),
        ("0.6b", "vllm"): Cell(1, 16, 256, 1024),
    },
)
QUICK = Sizes(
    shapes={"tiny": Shape(hidden=64, layers=2, heads=4, kv=2, head=32, inter=96, vocab=512)},
    train=_train(256, 16, ((4, 32), (4, 128))),
    sample=(Cell(2, 4, 8, 8), Cell(1, 8, 8, 16)),
    steps={("tiny", "torch"): Cell(2, 4, 8, 8), ("tiny", "vllm"): Cell(2, 4, 8, 8)},
    long_groups={},
    num_steps=2,
    passes=2,
)

SHARES: dict[str, dict[Kind, float]] = {
    "4b": {"model": 60, "train": 90, "sample": 70, "ours": 60, "theirs": 90},
}
"""Of the deadline's seconds, by shape; every other shape has the usual ones."""
USUAL: dict[Kind, float] = {"machine": 30, "model": 40, "train": 60, "sample": 60, "ours": 45, "theirs": 75}


def parts_of(sizes: Sizes, together: Sampler) -> Iterator[Part]:
    """In the order of importance; `together` is the sampler that both engines can have here."""
    shapes = list(sizes.shapes)
    first, rest = shapes[0], shapes[1:]
    yield Part("machine", "machine", USUAL["machine"])
    yield from _weights_and_training(sizes, first)
    for shape in rest:
        yield from _weights_and_training(sizes, shape)
    yield _sampling(sizes, first, "torch")
    yield from _side_by_side(first, sizes.steps, together)
    yield _sampling(sizes, first, "vllm")
    for shape in rest:
        yield _sampling(sizes, shape, "torch")
        yield from _side_by_side(shape, sizes.steps, together)
        yield _sampling(sizes, shape, "vllm")
    for shape in shapes:
        yield from _side_by_side(shape, sizes.long_groups, together)


def _weights_and_training(sizes: Sizes, shape: str) -> Iterator[Part]:
    yield Part(f"model-{shape}", "model", _share(shape, "model"), shape)
    yield Part(f"train-{shape}", "train", _share(shape, "train"), shape, sizes.train)


def _sampling(sizes: Sizes, shape: str, sampler: Sampler) -> Part:
    return Part(f"sample-{shape}-{sampler}", "sample", _share(shape, "sample"), shape, sizes.sample, sampler)


def _side_by_side(shape: str, steps: dict[tuple[str, Sampler], Cell], together: Sampler) -> Iterator[Part]:
    if (found := steps.get((shape, together))) is None:
        return
    for kind, side in SIDES.items():
        name = f"{step_name(shape, found)}-{side}"
        yield Part(name, kind, _share(shape, kind), shape, (), together, found)


SIDES: dict[Kind, str] = {"ours": "ours", "theirs": "trl"}


def step_name(shape: str, steps: Cell) -> str:
    return f"steps-{shape}-g{steps.group_size}"


def _share(shape: str, kind: Kind) -> float:
    return SHARES.get(shape, USUAL)[kind]
