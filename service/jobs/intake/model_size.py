"""The shape of a model, read from its config.json and the headers of its safetensors files.

Cached until a file of the folder changes.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from grpo_engine.config.hyperparameters import Quantization
from grpo_engine.files.safetensors_index import Tensor, read_tensors

_NOT_ADAPTED = re.compile(r"embed|wte|wpe|lm_head|norm|ln_")
"""Names of matrices that `all-linear` does not adapt."""
_ONE_EXPERT = re.compile(r"(.*\.experts)\.\d+\.")
"""Start of the name of one expert's matrix."""
MAX_SIZE, MAX_PARAMETERS = 2**32, 2**50
"""Limits for untrusted model files: larger numbers would overflow the estimate's floats."""


class UnknownShape(Exception):
    """The folder lacks a part of its model's shape."""


@dataclass(frozen=True)
class Matrix:
    """A linear layer's weight."""

    name: str
    rows: int
    columns: int


@dataclass(frozen=True)
class ModelShape:
    """The sizes that memory depends on."""

    num_parameters: int
    layers: int
    hidden: int
    intermediate: int
    kv_width: int
    """Number of values in one token's keys (or values) in a layer: heads × head size."""
    vocabulary: int
    matrices: tuple[Matrix, ...]
    """Weight matrices of linear layers."""
    modules: tuple[str, ...] = ()
    """All modules whose weight is a matrix or a stack of them, as LoRA needs."""

    def adapter_parameters(self, rank: int, targets: str | tuple[str, ...]) -> int:
        """Number of parameters of a LoRA adapter on all linear layers, or on those that `targets` name."""
        chosen = [each for each in self.matrices if targets == "all-linear" or _is_named(each.name, targets)]
        return sum(rank * (each.rows + each.columns) for each in chosen)

    def unmatched(self, targets: Sequence[str]) -> list[str]:
        """The targets that name none of `modules`."""
        return [each for each in targets if not any(_is_named(name, (each,)) for name in self.modules)]

    def weight_bytes(self, width: int, quantization: Quantization | None) -> int:
        """Memory of the loaded weights with `width` bytes for each value that is not quantised."""
        quantized = [each for each in self.matrices if quantization and not _is_expert(each.name)]
        rest = self.num_parameters - sum(each.rows * each.columns for each in quantized)
        return rest * width + sum(_quantized_bytes(each, quantization) for each in quantized)

    @property
    def has_experts(self) -> bool:
        return any(_is_expert(each.name) for each in self.matrices)

    @property
    def layer_names(self) -> list[str]:
        """The short names of the linear layers, such as q_proj."""
        return sorted({each.name.removesuffix(".weight").rpartition(".")[2] for each in self.matrices})


def model_shape(folder: Path) -> ModelShape:
    """The shape of the model in `folder`. Raises UnknownShape for a missing file or an unknown format."""
    weights = sorted(folder.glob("*.safetensors"))
    stamp = tuple(path.stat().st_mtime_ns for path in [folder / "config.json", *weights] if path.is_file())
    return _read(folder, tuple(weights), stamp)


@lru_cache(maxsize=32)
def _read(folder: Path, weights: tuple[Path, ...], _stamp: tuple[int, ...]) -> ModelShape:
    try:
        config = json.loads((folder / "config.json").read_bytes())
        tensors = dict(item for path in weights for item in _tensors(path))
        if "text_config" in config:
            config, tensors = config["text_config"], _of_language_model(tensors)
        return shape_of(config, tensors)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise UnknownShape(f"the shape of {folder.name} is unknown: {error!r}") from error


def _tensors(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each tensor."""
    with path.open("rb") as file:
        return _unquantized(read_tensors(file))


def _of_language_model(tensors: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """A vision-language model's tensors without those of its other parts, which jobs do not load."""
    parts = ("language_model.", "lm_head.")
    return {name: shape for name, shape in tensors.items() if any(part in name for part in parts)}


def _unquantized(tensors: Iterable[Tensor]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the weights that the stored quantised ones represent; see `CONVERTED`."""
    for each in tensors:
        if each.name.endswith("_blocks") and len(each.shape) == 4:
            experts, rows, blocks, num_bytes = each.shape  # two values in a byte
            yield each.name.removesuffix("_blocks"), (experts, rows, 2 * blocks * num_bytes)
        elif not each.name.endswith(("_scales", "_scale_inv")):
            yield each.name, each.shape


def shape_of(config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]]) -> ModelShape:
    """The shape from a model's config and its tensors' shapes. Raises ValueError, KeyError."""
    if not tensors:
        raise ValueError("there are no safetensors files")
    num_parameters = sum(math.prod(shape) for shape in tensors.values())
    longest = max((length for shape in tensors.values() for length in shape), default=0)
    if longest > MAX_SIZE or num_parameters > MAX_PARAMETERS:
        raise ValueError("the tensors are impossibly large")
    hidden = _largest(config.get("hidden_size") or config["n_embd"])
    heads = _largest(config.get("num_attention_heads") or config["n_head"])
    head_size = _largest(config.get("head_dim") or hidden // heads)
    return ModelShape(
        num_parameters=num_parameters,
        layers=_largest(config.get("num_hidden_layers") or config["n_layer"]),
        hidden=hidden,
        intermediate=_largest(config.get("intermediate_size") or config.get("n_inner") or 4 * hidden),
        kv_width=_largest(config.get("num_key_value_heads") or heads) * head_size,
        vocabulary=_largest(config["vocab_size"]),
        matrices=tuple(each for each in _matrices(tensors) if not _NOT_ADAPTED.search(each.name)),
        modules=tuple(_modules(tensors)),
    )


def _matrices(tensors: Mapping[str, tuple[int, ...]]) -> Iterator[Matrix]:
    for name, shape in tensors.items():
        if len(shape) == 2 and not name.endswith("_bias"):  # of each expert
            yield Matrix(name, *shape)
    for name, (count, rows, columns) in _expert_stacks(tensors):
        # an adapter has a pair of matrices for each expert of the stack
        yield Matrix(name, count * rows, count * columns)


def _modules(tensors: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    for name, shape in tensors.items():
        if name.endswith(".weight") and len(shape) > 1:
            yield name.removesuffix(".weight")
    yield from (name for name, _ in _expert_stacks(tensors))
    # transformers stacks the matrices of single experts, in most families below `mlp`
    if places := {found[1] for name in tensors if (found := _ONE_EXPERT.match(name))}:
        for place in (*places, "mlp.experts"):
            yield from (f"{place}.gate_up_proj", f"{place}.down_proj")


def _expert_stacks(tensors: Mapping[str, tuple[int, ...]]) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, shape) for name, shape in tensors.items() if len(shape) == 3 and ".experts." in name]


def _largest(size: Any) -> int:
    """A size of the configuration; the largest one if it differs between layers. Raises ValueError."""
    found = max(size) if isinstance(size, list) and size else size
    if not isinstance(found, int) or not 0 < found <= MAX_SIZE:
        raise ValueError(f"{size!r} is not a size")
    return found


def _is_expert(name: str) -> bool:
    """Whether the matrix becomes part of a tensor with all experts, which bitsandbytes does not quantise."""
    return ".experts." in name


def _quantized_bytes(matrix: Matrix, quantization: Quantization | None) -> int:
    """int8 adds a 4-byte scale per row; nf4 a 1-byte scale per 64 values and 4 bytes per 256 scales."""
    values = matrix.rows * matrix.columns
    if quantization == "int8":
        return values + 4 * matrix.rows
    return values // 2 + values // 64 + 4 * values // (64 * 256)


def _is_named(name: str, targets: Sequence[str]) -> bool:
    """Whether a target is the name or its last parts, as PEFT compares them."""
    return any(f".{name.removesuffix('.weight')}".endswith(f".{target}") for target in targets)
