"""Prints the results of commands: JSON for programs, tables and sentences for people.

Names and messages are data: they are shown verbatim, never as markup, and cannot control the terminal.
"""

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

# a pipe has no width; this one keeps each row of a table on one line
_is_terminal = sys.stdout is not None and sys.stdout.isatty()
console = Console(highlight=False, markup=False, emoji=False, width=None if _is_terminal else 240)
stderr = Console(stderr=True, highlight=False, markup=False, emoji=False)

# control characters except line feed and tab, marks that change the direction of text, lone surrogates
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


EXCERPT_CHARACTERS = 60


def plain(text: object) -> str:
    """The text with its control characters escaped: `\\x1b`."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], str(text))


def literal(text: object, style: str = "") -> Text:
    """The text for rich, which must not interpret it."""
    return Text(plain(text), style)


def say(text: object, style: str = "") -> None:
    """Prints a line on standard output without wrapping it."""
    console.print(literal(text, style), soft_wrap=True)


def note(text: object, style: str = "") -> None:
    """Prints a line on standard error without wrapping it."""
    stderr.print(literal(text, style), soft_wrap=True)


def json_line(document: Any) -> str:
    """JSON on one line, with those control characters escaped that JSON allows."""
    text = json.dumps(document, ensure_ascii=False)
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def print_json(document: Any) -> None:
    """Prints one JSON document on one line of standard output, and flushes it."""
    print(json_line(document), flush=True)


def print_line(document: Any, text: object, *, as_json: bool) -> None:
    """Prints a result as JSON or as one line of text."""
    if as_json:
        print_json(document)
    else:
        say(text)


def print_table(
    document: Any, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, as_json: bool = False
) -> None:
    """Prints a result as JSON or as a table without a frame, whose lines can be copied.

    In a narrow terminal all columns but `id` wrap, and no value is cut: a part of an id is of no use.
    """
    if as_json:
        print_json(document)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=column == "id", overflow="fold")
    for row in rows:
        table.add_row(*(literal("" if cell is None else cell) for cell in row))
    console.print(table)


def print_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Prints `name  value` lines; empty values are left out."""
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


def short_number(value: float | None) -> str:
    """Four significant digits; a dash for None."""
    return "–" if value is None else f"{value:.4g}"


def counted(count: int, noun: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def excerpt(text: str, limit: int = EXCERPT_CHARACTERS) -> str:
    """The beginning of the text on one line, at most `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
