"""Reads the steps from W&B's file of a run, which uses LevelDB's log format.

A file is a header and blocks of 32 KiB. A record is a single piece, or a first, middle and last ones; each
piece has a checksum, a length and a kind. If the writer was killed, the incomplete last record is ignored.
"""

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
    return max((int(row["_step"]) for file in files for row in rows(file)), default=-1)


def rows(path: Path) -> Iterator[dict[str, float]]:
    """The logged steps of a file, each as name → value. W&B writes names with slashes or dots as
    `nested_key`."""
    for item in messages(path, "history"):
        yield {each.key or ".".join(each.nested_key): json.loads(each.value_json) for each in item.item}


def messages(path: Path, kind: str) -> Iterator[Any]:
    """All records of one kind in a file."""
    for content in records(path.read_bytes()):
        message = _protocol.Record.FromString(content)
        if message.WhichOneof("record_type") == kind:
            yield getattr(message, kind)


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
