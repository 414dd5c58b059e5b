"""Which files hold a model's weights, and the positions of the tensors in a safetensors file.

A file starts with eight bytes of length and a JSON header. Only these are read, and they are not trusted.
"""

import json
import math
from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER_BYTES = 64 * 2**20
LENGTH_BYTES = 8
DTYPE_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1}
"""Dtypes whose byte size is checked against the shape; others are rare or smaller than a byte."""


class BadTensors(ValueError):
    """The files are not safetensors, or some of the model's files are missing."""


def shards(names: Set[str], index: bytes) -> set[str]:
    """The files that transformers would load; `index`: the content of INDEX. Raises BadTensors."""
    if SINGLE in names:
        return {SINGLE}
    try:
        listed = set(json.loads(index or b"{}").get("weight_map", {}).values())
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise BadTensors(f"{INDEX} cannot be read: {error}") from error
    if not listed:
        raise BadTensors(f"there is neither {SINGLE} nor an {INDEX} that lists other files")
    if missing := sorted(listed - names):
        raise BadTensors(f"{missing[0]}, a file with weights, is missing")
    return listed


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file."""

    name: str
    dtype: str
    """Name of the data type in the file: F32, BF16, …"""
    shape: tuple[int, ...]
    start: int
    """Offset of its first byte in the file."""
    end: int
    """Offset after its last byte."""


def read_tensors(file: IO[bytes]) -> tuple[Tensor, ...]:
    """All tensors in file order. Reads only the header. Raises BadTensors."""
    length = int.from_bytes(file.read(LENGTH_BYTES), "little")
    if length > MAX_HEADER_BYTES:
        raise BadTensors(f"its header has {length} bytes; the limit is {MAX_HEADER_BYTES}")
    try:
        header = json.loads(file.read(length))
        found = tuple(sorted(_tensors(header, LENGTH_BYTES + length), key=lambda each: each.start))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadTensors(f"its header is not valid safetensors: {error!r}") from error
    if any(left.end > right.start for left, right in pairwise(found)):
        raise BadTensors("its tensors overlap")
    return found


def _tensors(header: dict[str, Any], first: int) -> Iterator[Tensor]:
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = (first + int(offset) for offset in entry["data_offsets"])
        shape = tuple(int(length) for length in entry["shape"])
        tensor = Tensor(name, str(entry["dtype"]), shape, start, end)
        size = DTYPE_BYTES.get(tensor.dtype)
        is_whole = size is None or end - start == size * math.prod(shape)
        if not first <= start <= end or min(shape, default=0) < 0 or not is_whole:
            raise ValueError(f"{name} has impossible offsets")
        yield tensor
