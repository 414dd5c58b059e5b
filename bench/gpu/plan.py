"""The parts of the GPU set as plain data, in order of importance, with sizes and time limits.

Boundary: parts are run by `run.py` and measured by `measure.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.trl.models import Shape

Kind = Literal["machine", "tests", "model", "train", "sample", "ours", "theirs"]
Sampler = Literal["torch", "vllm"]


@dataclass(frozen=True, slots=True)
class Cell:
    """The sizes of one figure: groups of `group_size` completions, each exactly `length` tokens."""

    prompts: int
    group_size: int
    prompt_tokens: int
    length: int
    tokens_at_a_time: int = 0
    """Training only: tokens of one micro-batch."""
    recompute: bool = False
    """Training only: recompute activations in the backward pass instead of keeping them."""

    @property
    def completion_tokens(self) -> int:
        return self.prompts * self.group_size * self.length

    @property
    def tokens(self) -> int:
        """Counts each prompt once."""
        return self.completion_tokens + self.prompts * self.prompt_tokens


@dataclass(frozen=True, slots=True)
class Part:
    """One child process."""

    name: str
    kind: Kind
    seconds: float
    """Time limit; the part is not started if less than half of it is left."""
    shape: str = ""
    cells: tuple[Cell, ...] = ()
    sampler: Sampler = "torch"
    steps: Cell | None = None
    """An end-to-end run's sizes."""
    num_steps: int = 0
    """Steps of an end-to-end run; 0: as many as the set has."""
    ours: dict[str, Any] = field(default_factory=dict)
    """Hyperparameters of this engine that differ from the set's."""
    tests: tuple[str, ...] = ()
    """Files of tests to run."""

    @property
    def needs(self) -> str:
        """The part that must be done before this one; empty if there is none."""
        return f"model-{self.shape}" if self.shape and self.kind != "model" else ""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a whole set."""

    shapes: dict[str, Shape]
    train: tuple[Cell, ...]
    sample: tuple[Cell, ...]
    steps: dict[tuple[str, Sampler], Cell]
    """By shape, and by the sampler of both engines. TRL computes a prompt once for each completion, so the
    larger model gets fewer prompts; without vLLM it is slow, so completions are then shorter."""
    long_groups: dict[tuple[str, Sampler], Cell]
    """The same with larger groups; measured last, if time is left."""
    overlap: dict[str, Cell]
    """Whole steps by shape, which are sampled in turn with training and then beside it (`max_staleness`)."""
    quantized: dict[str, tuple[Cell, ...]]
    """Training cells by shape on a base of 4 bits."""
    num_steps: int = 3
    time_factor: float = 1.0
    """Multiplies the parts' time limits."""
    tests: tuple[str, ...] = ()
    """Files with tests of the engine on a GPU, which run before everything else."""
    service_tests: tuple[str, ...] = ()
    """The same of the whole service."""
    family_tests: tuple[str, ...] = ()
    """The same for each family of models, which run last."""
    passes: int = 3
    """Maximum timed repetitions of a training cell; fewer if its time is short."""
    matrix_size: int | None = None  # of the product that measures the machine's limit; None: the usual size


def _row(prompts: int, group_size: int, length: int, row: int, prompt: int) -> Cell:
    """A cell whose completions fill rows of exactly `row` tokens, prompts not counted."""
    in_a_row = max(1, row // (group_size * length))
    return Cell(prompts, group_size, prompt, length, row + in_a_row * prompt)


def _train(row: int, prompt: int, groups: Sequence[tuple[int, int]]) -> tuple[Cell, ...]:
    """One sequence as long as the row, with activations kept and then recomputed; then groups."""
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
        Cell(8, 8, 256, 4096),
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
    overlap={"0.6b": Cell(32, 8, 256, 256)},
    quantized={"4b": (_row(2, 8, 1024, 16_384, 128),)},
    tests=("tests/engine/device/test_on_gpu.py", "tests/engine/device/test_sharding_on_gpu.py"),
    service_tests=("tests/engine/device/test_service_on_gpu.py",),
    family_tests=("tests/engine/device/test_families_on_gpu.py",),
)
QUICK = Sizes(
    shapes={"tiny": Shape(hidden=64, layers=2, heads=4, kv=2, head=32, inter=96, vocab=512)},
    train=_train(256, 16, ((4, 32), (4, 128))),
    sample=(Cell(2, 4, 8, 8), Cell(1, 8, 8, 16)),
    steps={("tiny", "torch"): Cell(2, 4, 8, 8), ("tiny", "vllm"): Cell(2, 4, 8, 8)},
    long_groups={},
    overlap={"tiny": Cell(2, 4, 8, 8)},
    quantized={"tiny": (Cell(2, 4, 16, 32, 256),)},
    num_steps=2,
    time_factor=4.0,  # for a busy machine, because a tiny part mostly imports
    passes=2,
    matrix_size=256,
)

LIMITS: dict[str, dict[Kind, float]] = {
    "4b": {"model": 60, "train": 90, "sample": 180, "ours": 100, "theirs": 180},
}
"""Time limits in seconds by shape; all other shapes use `USUAL`."""
USUAL: dict[Kind, float] = {
    "machine": 30,
    "tests": 180,
    "model": 40,
    "train": 60,
    "sample": 120,
    "ours": 90,
    "theirs": 150,
}


SERVICE_TESTS = "service-tests"


def parts_of(sizes: Sizes, together: Sampler) -> Iterator[Part]:
    """Parts in order of importance; `together` is the sampler that both engines can use here."""
    yield Part("machine", "machine", sizes.time_factor * USUAL["machine"])
    if sizes.tests:
        yield Part("device-tests", "tests", USUAL["tests"], tests=sizes.tests)
    if sizes.service_tests:
        yield Part(SERVICE_TESTS, "tests", USUAL["tests"], tests=sizes.service_tests)
    for shape in sizes.shapes:
        yield Part(f"model-{shape}", "model", _limit(sizes, shape, "model"), shape)
        yield Part(f"train-{shape}", "train", _limit(sizes, shape, "train"), shape, sizes.train)
        yield _sampling(sizes, shape, "torch")
        yield from _side_by_side(sizes, shape, sizes.steps, together)
        yield from _overlapping(sizes, shape)
        yield from _quantized(sizes, shape)
        yield _sampling(sizes, shape, "vllm")
    for shape in sizes.shapes:
        yield from _side_by_side(sizes, shape, sizes.long_groups, together)
    if sizes.family_tests:
        yield Part("family-tests", "tests", USUAL["tests"], tests=sizes.family_tests)


OVERLAP_STEPS = 6
"""The last one of a run that samples ahead has no next step to sample."""
QUANTIZATION = "nf4"


def _overlapping(sizes: Sizes, shape: str) -> Iterator[Part]:
    if (cell := sizes.overlap.get(shape)) is None:
        return
    for name, staleness in zip(overlap_names(shape), (0, 1), strict=True):
        limit, ours = _limit(sizes, shape, "ours"), {"max_staleness": staleness}
        yield Part(name, "ours", limit, shape, steps=cell, num_steps=OVERLAP_STEPS, ours=ours)


def overlap_names(shape: str) -> tuple[str, str]:
    return f"steps-{shape}-in-turn", f"steps-{shape}-ahead"


def _quantized(sizes: Sizes, shape: str) -> Iterator[Part]:
    if cells := sizes.quantized.get(shape):
        name, ours = f"train-{shape}-{QUANTIZATION}", {"quantization": QUANTIZATION}
        yield Part(name, "train", _limit(sizes, shape, "train"), shape, cells, ours=ours)


def _sampling(sizes: Sizes, shape: str, sampler: Sampler) -> Part:
    return Part(
        f"sample-{shape}-{sampler}", "sample", _limit(sizes, shape, "sample"), shape, sizes.sample, sampler
    )


def _side_by_side(
    sizes: Sizes, shape: str, steps: dict[tuple[str, Sampler], Cell], together: Sampler
) -> Iterator[Part]:
    if (found := steps.get((shape, together))) is None:
        return
    for kind, side in SIDES.items():
        name = f"{step_name(shape, found)}-{side}"
        yield Part(name, kind, _limit(sizes, shape, kind), shape, (), together, found)


SIDES: dict[Kind, str] = {"ours": "ours", "theirs": "trl"}


def step_name(shape: str, steps: Cell) -> str:
    return f"steps-{shape}-g{steps.group_size}"


def _limit(sizes: Sizes, shape: str, kind: Kind) -> float:
    return sizes.time_factor * LIMITS.get(shape, USUAL)[kind]
