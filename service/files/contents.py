"""Checks of an uploaded dataset: JSONL in UTF-8. What its rows contain is checked when a job is created."""

import codecs
import hashlib
from dataclasses import dataclass
from typing import BinaryIO

from service.jobs.model.dataset import MAX_LINE_BYTES, RowError, parse_line
from service.platform.errors import InvalidRequest

UNSUPPORTED = "unsupported_file_format"
NOT_JSONL = (
    (b"PAR1", "Parquet files are converted by the CLI: grpo files upload data.parquet", UNSUPPORTED),
    (b"\x1f\x8b", "it is a gzip archive. Unpack it", UNSUPPORTED),
    (b"PK\x03\x04", "it is a ZIP archive or an Excel workbook. Unpack it, or save it as CSV", UNSUPPORTED),
    (codecs.BOM_UTF16_LE, "it is encoded in UTF-16. Save it as UTF-8", "file_not_utf8"),
    (codecs.BOM_UTF16_BE, "it is encoded in UTF-16. Save it as UTF-8", "file_not_utf8"),
)
"""First bytes of other files, the reason that they are refused for, and its code."""


@dataclass(frozen=True)
class DatasetDigest:
    num_bytes: int
    num_rows: int
    sha256: str


def check_dataset(file: BinaryIO, *, max_rows: int) -> DatasetDigest:
    """Size and digest of a JSONL file in UTF-8 with 1 to `max_rows` rows. Needs the memory of one line.

    After twice as many lines the rest is not read: half a gigabyte of line feeds would take minutes.
    Raises InvalidRequest naming the line.
    """
    _check_format(file)
    digest, num_bytes, num_rows, number = hashlib.sha256(), 0, 0, 0
    while line := file.readline(MAX_LINE_BYTES + 2):
        number += 1
        _check_line(line, number)
        if not line.isspace():
            if number > num_rows + 1:
                reason = f"line {num_rows + 1} is blank: only lines at the end of the file may be"
                raise _refused(reason, "invalid_jsonl")
            _check_row(line, number, is_first=num_rows == 0)
            num_rows += 1
        if num_rows > max_rows:
            raise _refused(f"it has more than {max_rows} rows, the limit", "too_many_rows")
        if number > 2 * max_rows:
            raise _too_many_blank_lines(num_rows, number)
        digest.update(line)
        num_bytes += len(line)
    if num_rows == 0:
        raise _refused("the file is empty" if number == 0 else "all its lines are blank", "file_empty")
    return DatasetDigest(num_bytes, num_rows, digest.hexdigest())


def _too_many_blank_lines(num_rows: int, number: int) -> InvalidRequest:
    """The refusal of a file whose lines from `num_rows` + 1 to `number` are blank."""
    if num_rows == 0:
        return _refused(f"its first {number:,} lines are blank", "file_empty")
    reason = f"at least {number - num_rows:,} blank lines follow its last row, line {num_rows}; remove them"
    return _refused(reason, "invalid_jsonl")


def _check_format(file: BinaryIO) -> None:
    file.seek(0)
    start = file.read(4)
    file.seek(0)
    for first_bytes, reason, code in NOT_JSONL:
        if start.startswith(first_bytes):
            raise _refused(reason, code)


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


def _check_row(line: bytes, number: int, *, is_first: bool) -> None:
    try:
        parse_line(line.rstrip(b"\r\n"))
    except RowError as fault:
        start = line.lstrip()[:1]
        if is_first and start == b"[":
            reason = "it is a JSON list, not JSONL; the CLI converts it: grpo files upload data.json"
            raise _refused(reason, UNSUPPORTED) from fault
        if is_first and start != b"{" and (b"," in line or b"\t" in line or b";" in line):
            reason = "it looks like CSV, not JSONL; the CLI converts it: grpo files upload data.csv"
            raise _refused(f"line {number} is not JSON: {reason}", UNSUPPORTED) from fault
        reason = f"line {number} {fault.reason}; each line must be one JSON object"
        raise _refused(reason, "invalid_jsonl") from fault


def _refused(reason: str, code: str) -> InvalidRequest:
    return InvalidRequest(f"file: {reason}.", param="file", code=code)
