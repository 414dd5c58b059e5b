"""Cheap checks of an uploaded dataset's bytes; its rows are checked when a job is created."""

import codecs
import hashlib
from dataclasses import dataclass
from typing import BinaryIO

from service.jobs.model.dataset import MAX_LINE_BYTES
from service.platform.errors import InvalidRequest

PARQUET = b"PAR1"


@dataclass(frozen=True)
class DatasetDigest:
    num_bytes: int
    sha256: str


def check_dataset(file: BinaryIO, *, max_rows: int) -> DatasetDigest:
    """Size and digest of a JSONL file in UTF-8 with 1 to `max_rows` rows. Needs the memory of one line.

    Blank lines are limited to `max_rows` too: reading half a gigabyte of line feeds takes minutes.
    Raises InvalidRequest naming the line.
    """
    file.seek(0)
    if file.read(len(PARQUET)) == PARQUET:
        reason = "Parquet files are converted by the CLI: grpo files upload data.parquet"
        raise _refused(reason, "unsupported_file_format")
    file.seek(0)
    digest, num_bytes, num_rows, number = hashlib.sha256(), 0, 0, 0
    while line := file.readline(MAX_LINE_BYTES + 2):
        number += 1
        _check_line(line, number)
        num_rows += not line.isspace()
        if num_rows > max_rows or number > 2 * max_rows:
            raise _refused(f"it has more than {max_rows} rows, the limit", "too_many_rows")
        digest.update(line)
        num_bytes += len(line)
    if num_rows == 0:
        raise _refused("the file is empty", "file_empty")
    return DatasetDigest(num_bytes, digest.hexdigest())


def _check_line(line: bytes, number: int) -> None:
    if len(line.rstrip(b"\r\n")) > MAX_LINE_BYTES:
        raise _refused(f"line {number} is longer than {MAX_LINE_BYTES} bytes", "line_too_long")
    if number == 1 and line.startswith(codecs.BOM_UTF8):
        raise _refused("line 1 starts with a byte order mark; save it as UTF-8 without one", "file_has_bom")
    if b"\x00" in line:
        raise _refused(f"line {number} contains a NUL byte", "file_not_utf8")
    try:
        line.decode()
    except UnicodeDecodeError as error:
        reason = f"line {number}, byte {error.start + 1} is not UTF-8"
        raise _refused(reason, "file_not_utf8") from error


def _refused(reason: str, code: str) -> InvalidRequest:
    return InvalidRequest(f"file: {reason}.", param="file", code=code)
