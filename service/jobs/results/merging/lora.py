"""The low-rank pairs of an unpacked adapter in PEFT's layout, as our engine writes it.

    W' = W + scale · B A        A: [rank, in], B: [out, rank], scale = alpha / rank        (arXiv:2106.09685)

Boundary: one pair in memory at a time. Refused is what the engine never writes: DoRA, rsLoRA, ranks by layer,
modules saved whole.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from grpo_engine.files.safetensors_index import BadTensors, Tensor, read_tensors
from service.jobs.results.merging.errors import NotMergeable
from service.jobs.results.merging.rounding import MERGED, Floats, floats

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX, A, B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
NEVER_WRITTEN = (
    "use_dora",
    "use_rslora",
    "modules_to_save",
    "rank_pattern",
    "alpha_pattern",
    "lora_bias",
    "layer_replication",
    "trainable_token_indices",
    "target_parameters",
)


@dataclass(frozen=True)
class Pair:
    """What one linear layer learnt."""

    path: Path
    down: Tensor
    """A."""
    up: Tensor
    """B."""
    scale: float
    is_transposed: bool
    """Whether its layer keeps its weight as [in, out], GPT-2's way."""

    @property
    def shape(self) -> tuple[int, int]:
        """Of the weight it is added to."""
        sizes = self.up.shape[0], self.down.shape[1]
        return sizes[::-1] if self.is_transposed else sizes

    def rows(self, start: int, stop: int) -> Floats:
        """These rows of what is added, float32 [stop - start, columns]."""
        left, right = self._matrix(self.up), self._matrix(self.down)
        if self.is_transposed:
            left, right = right.T, left.T
        product: Floats = (left[start:stop] @ right) * np.float32(self.scale)
        return product

    def is_finite(self) -> bool:
        return all(bool(np.isfinite(self._matrix(each)).all()) for each in (self.up, self.down))

    def _matrix(self, tensor: Tensor) -> Floats:
        with self.path.open("rb") as file:
            file.seek(tensor.start)
            return floats(file.read(tensor.end - tensor.start), tensor.dtype).reshape(tensor.shape)


@dataclass(frozen=True)
class Adapter:
    """All pairs by the name of their layer, and which revision of the base they were trained on."""

    pairs: dict[str, Pair]
    revision: str | None


def read_adapter(folder: Path) -> Adapter:
    """Raises NotMergeable."""
    path = folder / WEIGHTS
    if not (folder / CONFIG).is_file():
        raise NotMergeable(f"it is no adapter: it has no {CONFIG}")
    try:
        config = json.loads((folder / CONFIG).read_bytes())
        with path.open("rb") as file:
            tensors = {each.name: each for each in read_tensors(file)}
        scale = _scale(config)
        layers = sorted({_layer(name) for name in tensors})
        pairs = {layer: _pair(path, layer, tensors, scale, config) for layer in layers}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, BadTensors) as error:
        raise NotMergeable(f"the adapter cannot be read: {error!r}") from error
    if not pairs:
        raise NotMergeable("the adapter is empty")
    return Adapter(pairs, config.get("revision"))


def _scale(config: dict[str, Any]) -> float:
    kind = config["peft_type"]
    if kind != "LORA":
        raise NotMergeable(f"the adapter is {kind} and not LoRA")
    used = [name for name in NEVER_WRITTEN if config.get(name)]
    if config.get("bias", "none") != "none":
        used.append("bias")
    if used:
        raise NotMergeable(f"the adapter uses {', '.join(used)}, which this service merges for no job")
    return float(config["lora_alpha"]) / int(config["r"])


def _layer(name: str) -> str:
    """`base_model.model.lm_head.lora_A.weight` → `lm_head`."""
    layer = name.removeprefix(PREFIX).removesuffix(A).removesuffix(B)
    if not name.startswith(PREFIX) or not name.endswith((A, B)):
        raise NotMergeable(f"the adapter holds {name}, which is no half of a pair")
    return layer


def _pair(path: Path, layer: str, tensors: dict[str, Tensor], scale: float, config: dict[str, Any]) -> Pair:
    down, up = tensors[f"{PREFIX}{layer}{A}"], tensors[f"{PREFIX}{layer}{B}"]
    for each in (down, up):
        if each.dtype not in MERGED or len(each.shape) != 2:
            raise NotMergeable(f"{each.name} is {each.dtype} {list(each.shape)}")
    if not down.shape[0] == up.shape[1] == int(config["r"]):
        raise NotMergeable(f"the halves of {layer} have ranks {down.shape[0]} and {up.shape[1]}")
    pair = Pair(path, down, up, scale, is_transposed=bool(config.get("fan_in_fan_out")))
    if not pair.is_finite():
        raise NotMergeable(f"what {layer} has learnt is not finite")
    return pair
