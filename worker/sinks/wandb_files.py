"""Reads the steps from W&B's file of a run, which uses LevelDB's log format.

A file is a header and blocks of 32 KiB; a record is one piece, or a first, middle and last pieces, each with
checksum, length and kind. If the writer was killed, the incomplete last record is ignored.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK_BYTES = 32 * 1024
HEADER_BYTES = 7
"""Header of the file and of each piece: checksum (4), length (2), kind (1)."""
_protocol: Any = wandb_internal_pb2  # generated, without types
WHOLE, FIRST, _MIDDLE, LAST = 1, 2, 3, 4


def newest_step(folder: Path, run_id: str) -> int | None:
    """The newest step in all files of the run; -1: no step, None: no file."""
    files = sorted(folder.glob(f"wandb/*run-*-{run_id}/run-{run_id}.wandb"))
    if not files:
        return None
    return max((step_of(row) for file in files for row in histories(file)), default=-1)


def histories(path: Path) -> Iterator[Any]:
    """The logged steps of a file."""
    found = messages(path)
    return (message.history for message in found if message.WhichOneof("record_type") == "history")


def messages(path: Path) -> Iterator[Any]:
    """All records of a file."""
    return (_protocol.Record.FromString(content) for content in records(path.read_bytes()))


def step_of(row: Any) -> int:
    return int(values_of(row)["_step"])


def values_of(row: Any) -> dict[str, float]:
    """Name → value; W&B writes names with a slash or a dot as a path in `nested_key`."""
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in row.item}


def records(content: bytes) -> Iterator[bytes]:
    """Complete records in order."""
    parts: list[bytes] = []
    for kind, piece in _pieces(content):
        parts = [piece] if kind in (WHOLE, FIRST) else [*parts, piece]
        if kind in (WHOLE, LAST):
            yield b"".join(parts)


def _pieces(content: bytes) -> Iterator[tuple[int, bytes]]:
    place = HEADER_BYTES
    while place + HEADER_BYTES <= len(content):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < HEADER_BYTES:  # too short for a piece: padding
            place += left
            continue
        _checksum, num_bytes, kind = struct.unpack_from("<IHB", content, place)
        place += HEADER_BYTES + num_bytes
        if not kind or place > len(content):
            return
        yield kind, content[place - num_bytes : place]
