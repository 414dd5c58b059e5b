"""Which bytes a merged model has: its base's, but for the tensors that an adapter changes.

Boundary: the plan and its pieces. Every size is known before a number is computed, and any part can be made
without what lies before it. A large tensor is made by blocks of rows, always the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import IO

from grpo_engine.files.safetensors_index import DTYPE_BYTES, Tensor
from service.jobs.results.merging.bases import CHUNK_BYTES, Base, File, Member
from service.jobs.results.merging.errors import BaseChanged, BaseUnusable, NotMergeable
from service.jobs.results.merging.lora import Adapter, Pair
from service.jobs.results.merging.rounding import MERGED, floats, rounded

BLOCK_BYTES = 4 * 2**20
CONFIG, OUTPUT_LAYER = "config.json", "lm_head"
Pairs = Mapping[Tensor, Pair]


@dataclass(frozen=True)
class Merged:
    """A base and what is added to which of its tensors."""

    base: Base
    identity: str
    """The base's when this was planned."""
    members: tuple[Member, ...]
    pairs: Mapping[str, Pairs]
    """By file."""

    def files(self) -> Iterator[File]:
        """The base's, open one after the other. Raises BaseChanged as soon as one of them is another."""
        wanted = {each.name for each in self.members}
        for file in self.base.files():
            if file.name in wanted:
                yield file
            if self.base.identity != self.identity:
                raise BaseChanged("the base model's files have changed meanwhile")

    def pieces(self, file: File, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The merged file's bytes from `start` up to `end`."""
        pairs = self.pairs.get(file.name, {})
        end = file.num_bytes if end is None else end
        position = start
        for tensor in sorted(pairs, key=lambda each: each.start):
            if tensor.end <= position or tensor.start >= end:
                continue
            yield from _copied(file.content, position, tensor.start)
            position = max(position, tensor.start)
            stop = min(end, tensor.end)
            yield from _merged(file.content, tensor, pairs[tensor], position, stop)
            position = stop
        yield from _copied(file.content, position, end)


def planned(base: Base, adapter: Adapter) -> Merged:
    """Raises NotMergeable, OSError, StorageError."""
    identity, members = base.identity, base.members()
    tensors = {tensor.name: (member.name, tensor) for member in members for tensor in member.tensors}
    if OUTPUT_LAYER in adapter.pairs and _is_tied(base):
        raise NotMergeable("the adapter changes the output layer, which the base shares with its embedding")
    pairs: dict[str, dict[Tensor, Pair]] = {}
    for layer, pair in adapter.pairs.items():
        name, tensor = _found(tensors, layer)
        if tensor in pairs.setdefault(name, {}):
            raise NotMergeable(f"the adapter changes {tensor.name} twice")
        pairs[name][tensor] = _fitted(pair, tensor)
    return Merged(base, identity, members, pairs)


def _found(tensors: Mapping[str, tuple[str, Tensor]], layer: str) -> tuple[str, Tensor]:
    """A layer's weight; some files leave out the first part of all names, the name of the model's body."""
    for name in (layer, layer.partition(".")[2]):
        if found := tensors.get(f"{name}.weight"):
            return found
    raise NotMergeable(f"the base model has no tensor {layer}.weight, which the adapter changes")


def _fitted(pair: Pair, tensor: Tensor) -> Pair:
    if tensor.dtype not in MERGED:
        raise NotMergeable(f"{tensor.name} of the base model is {tensor.dtype}: it is quantised")
    for each in (pair, replace(pair, is_transposed=False)):
        if each.shape == tensor.shape:
            return each
    raise NotMergeable(f"{tensor.name} of the base model is {list(tensor.shape)}, the adapter's {pair.shape}")


def _is_tied(base: Base) -> bool:
    config = next((file.content.read() for file in base.files() if file.name == CONFIG), b"{}")
    try:
        return bool(json.loads(config).get("tie_word_embeddings", False))
    except (ValueError, AttributeError) as error:
        raise BaseUnusable(f"{CONFIG} cannot be read: {error}") from error


def _copied(file: IO[bytes], start: int, end: int) -> Iterator[bytes]:
    for position in range(start, end, CHUNK_BYTES):
        yield _read(file, position, min(end, position + CHUNK_BYTES))


def _merged(file: IO[bytes], tensor: Tensor, pair: Pair, start: int, end: int) -> Iterator[bytes]:
    """Bytes of a tensor's blocks, `start` and `end` as places in the file."""
    rows, columns = tensor.shape
    row_bytes = columns * DTYPE_BYTES[tensor.dtype]
    height = max(1, BLOCK_BYTES // row_bytes)
    for row in range(0, rows, height):
        below = min(rows, row + height)
        first, last = tensor.start + row * row_bytes, tensor.start + below * row_bytes
        if first < end and last > start:
            values = floats(_read(file, first, last), tensor.dtype).reshape(below - row, columns)
            block = rounded(values + pair.rows(row, below), tensor.dtype)
            yield block[max(0, start - first) : end - first]


def _read(file: IO[bytes], start: int, end: int) -> bytes:
    file.seek(start)
    data = file.read(end - start)
    if len(data) < end - start:
        raise BaseUnusable("a file of the base model ends too early")
    return data
