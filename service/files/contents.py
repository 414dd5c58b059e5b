"""Cheap checks of an uploaded dataset's bytes; what its rows mean is checked when a job is submitted."""

from __future__ import annotations

import codecs
import hashlib
from dataclasses import dataclass
from typing import BinaryIO

from service.jobs.model.dataset import MAX_LINE_BYTES
from service.platform.errors import InvalidRequest
from service.platform.parquet import MAGIC, BadParquet, is_parquet, parquet_lines
from service.platform.storage import CHUNK_BYTES


@dataclass(frozen=True)
class Content:
    num_bytes: int
    sha256: str


def check_dataset(file: BinaryIO, *, max_rows: int, max_bytes: int) -> Content:
    """Size and digest of a dataset, JSONL or Parquet: at least one row, at most `max_rows`.

    Raises InvalidRequest naming the line. `max_bytes`: of a Parquet file's rows as JSON.
    """
    file.seek(0)
    if not is_parquet(file.read(len(MAGIC))):
        return _check_jsonl(file, max_rows)
    try:
        num_rows = sum(1 for _ in parquet_lines(file, max_rows=max_rows, max_bytes=max_bytes))
    except BadParquet as error:
        raise _refused(error.reason, error.code) from error
    if num_rows == 0:
        raise _refused("the file is empty", "file_empty")
    return _content_of(file)


def _content_of(file: BinaryIO) -> Content:
    file.seek(0)
    digest = hashlib.sha256()
    while piece := file.read(CHUNK_BYTES):
        digest.update(piece)
    return Content(file.tell(), digest.hexdigest())


def _check_jsonl(file: BinaryIO, max_rows: int) -> Content:
    """UTF-8 without endless lines. Needs the memory of one line.

    Lines without a row count too, half as much: half a gigabyte of line feeds takes minutes to read.
    """
    file.seek(0)
    digest, num_bytes, num_rows, number = hashlib.sha256(), 0, 0, 0
    while line := file.readline(MAX_LINE_BYTES + 2):
        number += 1
        _check_line(line, number)
        num_rows += not line.isspace()
        if num_rows > max_rows or number > 2 * max_rows:
            raise _refused(f"more than {max_rows} rows", "too_many_rows")
        digest.update(line)
        num_bytes += len(line)
    if num_rows == 0:
        raise _refused("the file is empty", "file_empty")
    return Content(num_bytes, digest.hexdigest())


def _check_line(line: bytes, number: int) -> None:
    if len(line.rstrip(b"\r\n")) > MAX_LINE_BYTES:
        raise _refused(f"line {number} is longer than {MAX_LINE_BYTES} bytes", "line_too_long")
    if number == 1 and line.startswith(codecs.BOM_UTF8):
        raise _refused("line 1 starts with a byte order mark; save it as UTF-8 without one", "file_has_bom")
    if b"\x00" in line:
        raise _refused(f"line {number} holds a NUL byte", "file_not_utf8")
    try:
        line.decode()
    except UnicodeDecodeError as error:
        reason = f"line {number}, byte {error.start + 1} is not UTF-8"
        raise _refused(reason, "file_not_utf8") from error


def _refused(reason: str, code: str) -> InvalidRequest:
    return InvalidRequest(f"file: {reason}.", param="file", code=code)
