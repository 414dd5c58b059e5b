"""Parquet files as the JSON lines of their rows, so that all that reads datasets reads one format.

The user's own bytes stay what is stored; rows are converted wherever they are read, by `parquet_rows.py` in
a process of its own and never root's, which also says how values become JSON. Row n of the file is line n.
Boundary: this process never loads pyarrow.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import IO

from grpo_engine.sandbox.launch import SandboxUnavailable, nobody_who_reads
from service.platform import parquet_rows
from service.platform.errors import Unavailable
from service.platform.parquet_rows import MAX_LINE_BYTES
from service.platform.storage import Storage, split_lines

MAGIC = b"PAR1"
MAX_PROCESSES = 2
_UNREADABLE = "it cannot be read as Parquet: it is damaged, or takes too much memory or time"
_processes = threading.BoundedSemaphore(MAX_PROCESSES)


class BadParquet(Exception):
    """The file cannot be used: a stable code and a reason."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def is_parquet(start: bytes) -> bool:
    """Whether a file that starts so is Parquet; its name says nothing."""
    return start.startswith(MAGIC)


def parquet_lines(file: IO[bytes], *, max_rows: int, max_bytes: int) -> Iterator[bytes]:
    """The rows of an open file as JSON lines, with their line feeds.

    Raises BadParquet, and Unavailable where this machine cannot read any.
    `file` lies on a disk; where it is read and written does not change. `max_bytes`: of all lines together.
    """
    with _processes, _started(file, max_rows, max_bytes) as output:
        while line := output.readline(MAX_LINE_BYTES + 2):
            if line == b".\n":
                return
            if line.startswith(b"!"):
                said = json.loads(line[1:])
                raise BadParquet(said["code"], said["reason"])
            yield line
    raise BadParquet("parquet_damaged", _UNREADABLE)


def stored_lines(storage: Storage, key: str, *, max_rows: int, max_bytes: int) -> Iterator[bytes]:
    """Lines of a stored dataset of either format, without their line feeds.

    Raises ObjectMissing, and BadParquet.
    """
    pieces = storage.stream(key)
    first = next(pieces, b"")
    if not is_parquet(first):
        yield from split_lines(chain((first,), pieces))
        return
    with tempfile.TemporaryFile() as copy:
        copy.writelines(chain((first,), pieces))
        for line in parquet_lines(copy, max_rows=max_rows, max_bytes=max_bytes):
            yield line.removesuffix(b"\n")


def make_jsonl(path: Path, *, max_rows: int, max_bytes: int) -> None:
    """Turns a Parquet file on this disk into JSONL under the same name; another file stays as it is.

    Raises BadParquet.
    """
    with path.open("rb") as file:
        if not is_parquet(file.read(len(MAGIC))):
            return
        converted = path.with_name(f".{path.name}.rows")
        with converted.open("wb") as lines:
            lines.writelines(parquet_lines(file, max_rows=max_rows, max_bytes=max_bytes))
    converted.replace(path)


@contextmanager
def _started(file: IO[bytes], max_rows: int, max_bytes: int) -> Iterator[IO[bytes]]:
    """The converter's output; it has ended when the block has."""
    descriptor = file.fileno()
    file.flush()
    program = str(Path(parquet_rows.__file__))
    try:
        unprivileged = nobody_who_reads(sys.executable, sys.prefix, program)
    except SandboxUnavailable as error:
        reason = f"Parquet cannot be read here: this is root, and {error}"
        raise Unavailable(reason, code="parquet_unavailable", headers={"x-should-retry": "false"}) from error
    process = subprocess.Popen(
        [*unprivileged, sys.executable, "-I", program, str(max_rows), str(max_bytes)],
        stdin=descriptor,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"},
    )
    with process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()
