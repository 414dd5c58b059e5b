"""How commands print: JSON for programs, tables and sentences for people.

Names and messages are data: they appear as they are, are never markup, and control no terminal.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

# a pipe has no width: a table's rows stay one line each there
console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 240)
stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)

# control characters but line feed and tab, marks that turn the direction of text, lone surrogates
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: object) -> str:
    """The text with its control characters spelled out: `\\x1b`."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(text))


def literal(text: object, style: str = "") -> Text:
    """For rich: this text, whatever is in it."""
    return Text(plain(text), style)


def say(text: object, style: str = "") -> None:
    """A line on standard output, as long as it is."""
    console.print(literal(text, style), soft_wrap=True)


def json_line(document: Any) -> str:
    """JSON on one line; what JSON itself leaves of control characters is escaped too."""
    text = json.dumps(document, ensure_ascii=False)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(document: Any) -> None:
    """One JSON document on one line of standard output, written at once."""
    sys.stdout.write(json_line(document) + "\n")
    sys.stdout.flush()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Columns without a frame, so that lines can be copied."""
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        table.add_row(*(literal("" if cell is None else cell) for cell in row))
    console.print(table)


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """`name  value` lines; empty values are left out."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in fields:
        if value not in (None, "", [], {}):
            table.add_row(literal(name), literal(value))
    console.print(table)


def at(seconds: float | None) -> str:
    """Unix seconds → local time."""
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def duration(seconds: float | None) -> str:
    """Seconds → `1h 02m 03s`."""
    if seconds is None:
        return ""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h {minutes:02}m {rest:02}s"
    return f"{minutes}m {rest:02}s" if minutes else f"{rest}s"


def size(num_bytes: int | None) -> str:
    """Bytes → `1.4 MB`."""
    value = float(num_bytes or 0)
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"
