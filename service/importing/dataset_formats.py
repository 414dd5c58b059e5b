"""Converts Parquet, CSV, JSON and hub datasets to the JSONL that the service takes.

The `datasets` library reads Parquet, folders and the hub, on the user's machine. The standard library reads
CSV and JSON lists, because `datasets` infers types: it turns the answer "007" into 7 and "2024-01-02" into a
timestamp. Every cell of a CSV file is a text.
Boundary: the service checks the rows' fields.
"""

import csv
import json
import math
from codecs import BOM_UTF8
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from grpo_engine.contract.strict_json import unique_keys
from service.files.contents import NOT_JSONL
from service.jobs.model.dataset import RowError, parse_line

HUB = "hf://"
PARQUET = b"PAR1"
DELIMITERS = {".csv": ",", ".tsv": "\t"}
HUB_SECONDS = 10
MAX_HUB_BYTES = 2**30
"""Largest download for a conversion; the service takes 512 MB by default."""

Row = Mapping[str, Any]


class Unreadable(Exception):
    """A file or a dataset cannot be used; the message says why."""


@contextmanager
def as_jsonl(
    source: str,
    *,
    config: str | None = None,
    split: str | None = None,
    columns: Mapping[str, str] | None = None,
    plain: bool = False,
) -> Iterator[Path]:
    """The dataset as a JSONL file: the file itself if it is one, otherwise a temporary file.

    `source`: a file, a folder that `datasets` can load, or `hf://owner/name`, optionally `/configuration`.
    `columns`: column → its name in the JSONL. A text that becomes `prompt` or `messages` is a user's message,
    unless `plain`; one that becomes `completion` beside it is the assistant's. Raises Unreadable, OSError.
    """
    path = Path(source)
    if not columns and split is None and config is None and is_jsonl(source):
        yield path
        return
    with TemporaryDirectory() as folder:
        name = source.removeprefix(HUB).replace("/", "-") if source.startswith(HUB) else path.stem
        target = Path(folder) / f"{name}.jsonl"
        write_jsonl(target, read_rows(source, split, config), columns or {}, plain=plain)
        if target.stat().st_size == 0:
            raise Unreadable(f"{source} has no rows")
        yield target


def read_rows(source: str, split: str | None = None, config: str | None = None) -> Iterator[Row]:
    """The rows of a dataset in any of the formats. Raises Unreadable, OSError."""
    path = Path(source)
    if source.startswith(HUB):
        name, *configured = _hub_name(source)
        if config is not None and configured not in ([], [config]):
            raise Unreadable(f"{source} and --config {config} name two configurations: give one of them")
        return _loaded(split, name, *(configured or filter(None, [config])))
    if path.is_dir():
        return _loaded(split, source, *filter(None, [config]))
    for option, value in (("split", split), ("configuration", config)):
        if value is not None:
            flag = "--split" if option == "split" else "--config"
            raise Unreadable(f"{source} is one file and has no {option} {value!r}: remove {flag}")
    kind = _kind(path)
    if kind == "parquet":
        return _loaded(None, "parquet", data_files=source)
    return {"csv": _csv_rows, "json": _json_rows, "jsonl": jsonl_rows}[kind](path)


def write_jsonl(
    target: Path, rows: Iterable[Row], columns: Mapping[str, str], *, plain: bool = False
) -> None:
    """Write the rows as JSONL. Raises Unreadable, with row and column, for a value that cannot be stored."""
    found = dict[str, None]()
    with target.open("w", encoding="utf-8") as lines:
        for number, row in enumerate(rows, 1):
            found |= dict.fromkeys(row)
            named = {columns.get(name, name): value for name, value in row.items()}
            if len(named) < len(row):
                names = [columns.get(name, name) for name in row]
                twice = next(name for name in names if names.count(name) > 1)
                raise Unreadable(f"two columns would be named {twice!r}: rename the other one as well")
            made = named if plain else _with_messages(named, columns.values())
            lines.write(_line(made, number) + "\n")
    if found and (missing := [name for name in columns if name not in found]):
        raise Unreadable(f"there is no column {missing[0]!r}: the columns are {', '.join(found)}")


def stored_rows(rows: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """The rows as the service stores them, with values of JSON only. Raises Unreadable as `write_jsonl`."""
    return (parse_line(_line(row, number).encode()) for number, row in enumerate(rows, 1))


def _with_messages(row: Row, renamed: Collection[str]) -> Row:
    """The row with `messages` made of its renamed prompt, a text or messages, and of its completion."""
    name = next((name for name in ("messages", "prompt") if name in renamed), None)
    if name is None or not isinstance(row.get(name), str | list):
        return row
    turns = row[name] if isinstance(row[name], list) else [{"role": "user", "content": row[name]}]
    used = {name, "messages"}
    if isinstance(row.get("completion"), str):
        turns = [*turns, {"role": "assistant", "content": row["completion"]}]
        used.add("completion")
    return {"messages": turns, **{column: value for column, value in row.items() if column not in used}}


def is_jsonl(source: str) -> bool:
    """Whether the service takes this file unchanged."""
    path = Path(source)
    return path.is_file() and _kind(path) == "jsonl"


def _kind(path: Path) -> str:
    """A file's format, by its first bytes; CSV, also with tabs, by its name.

    Raises Unreadable for an archive and for UTF-16.
    """
    with path.open("rb") as file:
        start = file.read(64).removeprefix(BOM_UTF8).lstrip()
    if start.startswith(PARQUET):
        return "parquet"
    for first_bytes, reason, _ in NOT_JSONL:
        if start.startswith(first_bytes):
            raise Unreadable(f"{path}: {reason}")
    if path.suffix.lower() in DELIMITERS:
        return "csv"
    return "json" if start.startswith(b"[") else "jsonl"


def jsonl_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a JSONL file. Raises Unreadable naming the first broken line."""
    with path.open("rb") as lines:
        for number, read in enumerate(lines, 1):
            line = read.removeprefix(BOM_UTF8) if number == 1 else read
            try:
                if line.strip():
                    yield parse_line(line.rstrip(b"\r\n"))
            except RowError as error:
                hint = "each line must be one JSON object"
                if not line.lstrip().startswith(b"{"):
                    hint += "; name a file with columns .csv or .tsv"
                raise Unreadable(f"{path}, line {number} {error.reason}: {hint}") from error


def _json_rows(path: Path) -> Iterator[Row]:
    try:
        rows = json.loads(path.read_bytes(), object_pairs_hook=unique_keys)
    except ValueError as error:
        raise Unreadable(f"{path} is not JSON: {error}") from error
    except RecursionError as error:
        raise Unreadable(f"{path} is nested too deeply") from error
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise Unreadable(f"{path}, row {number} is not a JSON object")
        yield row


def _csv_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**27)
    delimiter = DELIMITERS[path.suffix.lower()]
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file, strict=True, delimiter=delimiter)
        try:
            names = rows.fieldnames or ()
            if delimiter == "," and len(names) == 1 and {";", "\t"} & set(names[0]):
                raise Unreadable(f"{path}, line 1 has no commas: save it with commas between its cells")
            if twice := [name for name in names if names.count(name) > 1]:
                raise Unreadable(f"{path}, line 1 has two columns named {twice[0]!r}: rename one of them")
            for number, row in enumerate(rows, 1):
                if None in row or None in row.values():
                    cells = f"{len(names)} cells, as line 1 has"
                    raise Unreadable(f"{path}, row {number} does not have {cells}")
                yield row
        except UnicodeDecodeError as error:  # in one of the next lines: the file is decoded in blocks
            reason = f"is not UTF-8 after line {rows.line_num}: save it as CSV in UTF-8"
            raise Unreadable(f"{path} {reason}") from error
        except csv.Error as error:
            raise Unreadable(f"{path}, line {rows.line_num + 1} is not CSV: {error}") from error


def _hub_name(source: str) -> list[str]:
    """`hf://owner/name/configuration` → the dataset and its configuration."""
    parts = source.removeprefix(HUB).strip("/").split("/")
    if len(parts) not in (2, 3):
        raise Unreadable(f"{source} is not hf://owner/name or hf://owner/name/configuration")
    return ["/".join(parts[:2]), *parts[2:]]


def _loaded(split: str | None, *dataset: str, **options: str) -> Iterator[Row]:
    """Rows that `datasets` reads, without nulls: Arrow does not distinguish them from absent fields."""
    try:
        import datasets
    except ImportError as error:
        raise Unreadable("reading it needs the datasets library: pip install 'grpo-service[data]'") from error
    datasets.disable_progress_bars()
    if not Path(dataset[0]).is_dir() and not options:
        _require_hub(datasets.config.HF_ENDPOINT)
    with TemporaryDirectory() as cache:
        try:
            builder = datasets.load_dataset_builder(*dataset, cache_dir=cache, **options)
            if (size := builder.info.download_size or 0) > MAX_HUB_BYTES:
                limit = f"the limit here is {MAX_HUB_BYTES}: make a smaller file of it with `datasets`"
                raise Unreadable(f"{dataset[0]} has {size} bytes; {limit}")
            builder.download_and_prepare()
            rows = builder.as_dataset(split or "train")
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
            reason = " ".join(str(error.__cause__ or error).split())[:300]
            if reason.startswith("Config name is missing"):
                reason = reason.partition(" Example of usage")[0] + " with --config"
            raise Unreadable(f"{options.get('data_files', dataset[0])} cannot be loaded: {reason}") from error
        yield from map(_without_nulls, rows)


def _require_hub(url: str) -> None:
    """Raises Unreadable at once without a connection, because `datasets` would retry for half a minute."""
    try:
        httpx.head(url, timeout=HUB_SECONDS)
    except httpx.TransportError as error:
        hint = "download the dataset where there is one, and upload its files"
        raise Unreadable(f"no connection to {url} ({error}): {hint}") from error


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(each) for name, each in value.items() if each is not None}
    return [_without_nulls(each) for each in value] if isinstance(value, list) else value


def _line(row: Row, number: int) -> str:
    cells = []
    for name, value in row.items():
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, default=_json_value)
        except TypeError as error:
            raise Unreadable(f"row {number}, column {name!r}: {error}") from error
        except (ValueError, RecursionError) as error:
            reason = "a number that is NaN or infinite, or too deep a nesting, has no JSON form"
            raise Unreadable(f"row {number}, column {name!r}: {reason}") from error
        cell = f"{json.dumps(name, ensure_ascii=False)}: {text}"
        try:
            parse_line(f"{{{cell}}}".encode("utf-8", "backslashreplace"))
        except RowError as error:
            raise Unreadable(f"row {number}, column {name!r} {error.reason}") from error
        cells.append(cell)
    return "{" + ", ".join(cells) + "}"


def _json_value(value: Any) -> Any:
    """Times in ISO 8601, decimals as numbers, bytes as text; JSON has none of these. Raises TypeError."""
    match value:
        case date() | time():
            return value.isoformat()
        case Decimal() if value.is_finite() and value == value.to_integral_value():
            return int(value)
        case Decimal() if math.isfinite(value) and Decimal(repr(float(value))) == value:
            return float(value)
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise TypeError("bytes that are not UTF-8 text have no JSON form") from None
    raise TypeError(
        f"the {type(value).__name__} {str(value)[:60]} has no JSON form: write a number or a text"
    )
