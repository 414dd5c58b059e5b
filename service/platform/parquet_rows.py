"""Parquet on standard input → its rows as JSON lines on standard output. A program of its own.

pyarrow is C++ that reads a stranger's bytes, so it runs here: in a process with limits on memory and time,
that may die without harm. Started by `parquet.py` as `python -I`, with two arguments: rows and bytes of
JSON at most. Each line is a row; the last line is `.`, or `!` and `{"code", "reason"}` where it is refused.

What JSON has no value for: a null in a struct, a map or a row is left out, because Parquet cannot tell a
null from an absent field. Dates, times and timestamps are written in ISO 8601, up to microseconds. Decimals
are numbers, refused where a double cannot hold them. Bytes are UTF-8 text, else refused. NaN and infinite
numbers, durations and maps whose keys are no text are refused.
Boundary: the standard library and pyarrow only.
"""

from __future__ import annotations

import io
import json
import math
import os
import resource
import sys
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, BinaryIO

BATCH_ROWS = 64
BUFFER_BYTES = 2**20
MAX_MEMORY_BYTES = 4 * 2**30
MAX_CPU_SECONDS = 300
MAX_FOOTER_ITEMS = 100_000
"""Elements of one list in the footer: column chunks, schema elements, key-value pairs."""
MAX_LINE_BYTES = 8 * 2**20
"""As of a JSONL row."""


class Refused(Exception):
    """This file, and why."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class NoJson(Exception):
    """A value without a JSON form; says which."""


def main() -> None:
    """The whole conversation. Whatever is not caught ends it without its last line."""
    max_rows, max_bytes = int(sys.argv[1]), int(sys.argv[2])
    for limit, value in ((resource.RLIMIT_AS, MAX_MEMORY_BYTES), (resource.RLIMIT_CPU, MAX_CPU_SECONDS)):
        _, hard = resource.getrlimit(limit)
        resource.setrlimit(limit, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
    output = sys.stdout.buffer
    try:
        for line in json_lines(0, max_rows, max_bytes):
            output.write(line)
        output.write(b".\n")
    except Refused as refused:
        said = {"code": refused.code, "reason": str(refused)}
        output.write(b"!" + json.dumps(said).encode() + b"\n")
    output.flush()


def json_lines(descriptor: int, max_rows: int, max_bytes: int) -> Iterator[bytes]:
    """The rows in order, a line each. Raises Refused."""
    import pyarrow

    num_rows = num_bytes = 0
    try:
        for row in _rows(_opened(descriptor), max_rows, max_bytes):
            num_rows += 1
            line = _line(row, num_rows)
            num_bytes += len(line)
            if num_rows > max_rows:
                raise _too_many(max_rows)
            if num_bytes > max_bytes:
                raise _too_large(max_bytes)
            yield line
    except MemoryError:
        raise Refused("parquet_too_large", "its rows need too much memory to be read") from None
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise Refused("parquet_damaged", f"it cannot be read as Parquet: {reason}") from None


def _rows(file: BinaryIO, max_rows: int, max_bytes: int) -> Iterator[dict[str, Any]]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    parquet = ParquetFile(
        pyarrow.PythonFile(file, mode="r"),
        buffer_size=BUFFER_BYTES,
        pre_buffer=False,
        thrift_container_size_limit=MAX_FOOTER_ITEMS,
        arrow_extensions_enabled=False,
    )
    footer, names = parquet.metadata, parquet.schema_arrow.names
    if footer.num_rows > max_rows:
        raise _too_many(max_rows)
    if sum(footer.row_group(index).total_byte_size for index in range(footer.num_row_groups)) > max_bytes:
        raise _too_large(max_bytes)
    if len(set(names)) != len(names):
        raise Refused("parquet_columns", "two of its columns have the same name")
    num_rows = 0
    for index in range(footer.num_row_groups):
        batches = parquet.iter_batches(batch_size=BATCH_ROWS, row_groups=[index], use_threads=False)
        for batch in batches:
            num_rows += batch.num_rows
            yield from batch.to_pylist(maps_as_pydicts="strict")
    if num_rows != footer.num_rows:
        raise Refused("parquet_damaged", f"it holds {num_rows} rows and says {footer.num_rows}")


def _line(row: dict[str, Any], number: int) -> bytes:
    fields = {}
    for name, value in row.items():
        try:
            if value is not None:
                fields[name] = _plain(value)
        except NoJson as error:
            where = f"row {number}, column {name[:100]!r}"
            raise Refused("parquet_value", f"{where}: {error}") from None
        except RecursionError:
            raise Refused("parquet_value", f"row {number} is nested too deeply") from None
    line = json.dumps(fields, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    if len(line) > MAX_LINE_BYTES + 1:
        raise Refused("line_too_long", f"row {number} is longer than {MAX_LINE_BYTES} bytes as JSON")
    return line


def _plain(value: Any) -> Any:
    """A JSON value. Raises NoJson."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return _finite(value)
        case Decimal():
            return _number(value)
        case datetime() | time():
            return _moment(value)
        case date():
            return value.isoformat()
        case bytes():
            return _text(value)
        case list():
            return [_plain(each) for each in value]
        case dict():
            return _object(value)
    raise NoJson(f"a {type(value).__name__} has no JSON form: write a number or a text")


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise NoJson(f"{value} is not a JSON number")
    return value


def _number(value: Decimal) -> int | float:
    if not value.is_finite():
        raise NoJson(f"{value} is not a JSON number")
    if value == value.to_integral_value():
        return int(value)
    if Decimal(repr(float(value))) != value:
        raise NoJson(f"the decimal {value} has more digits than a number keeps: write a text")
    return float(value)


def _moment(value: datetime | time) -> str:
    if getattr(value, "nanosecond", 0):
        raise NoJson("a time has nanoseconds: write microseconds or a text")
    return value.isoformat()


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise NoJson("bytes that are not UTF-8 text have no JSON form") from None


def _object(value: dict[Any, Any]) -> dict[str, Any]:
    if not all(isinstance(name, str) for name in value):
        raise NoJson("a map's keys must be texts")
    return {name: _plain(each) for name, each in value.items() if each is not None}


def _too_many(max_rows: int) -> Refused:
    return Refused("too_many_rows", f"more than {max_rows} rows")


def _too_large(max_bytes: int) -> Refused:
    return Refused("parquet_too_large", f"its rows have more than {max_bytes} bytes, the limit here")


class _Descriptor(io.RawIOBase):
    """Reads with a position of its own: the parent's position in the same file does not move."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._descriptor, len(buffer), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        self._position = offset + (os.fstat(self._descriptor).st_size if start is None else start)
        return self._position


def _opened(descriptor: int) -> BinaryIO:
    return io.BufferedReader(_Descriptor(descriptor), BUFFER_BYTES)


if __name__ == "__main__":
    main()
