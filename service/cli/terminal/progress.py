"""How far something long is: a live line on a terminal, else a plain line now and then. On standard error.

Boundary: shows numbers that others count.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from service.cli.terminal.output import literal, plain, size, stderr

LINE_SECONDS = 5.0
"""Without a terminal a line at most so often, and none for what is over sooner."""
Advance = Callable[[int, int | None], None]
"""Takes the bytes so far and all of them, None where that is not known."""


@contextmanager
def transfer(text: str) -> Iterator[Advance]:
    """Bytes, their share and their rate."""
    if not stderr.is_terminal:
        yield _Lines(text).advance
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn())
    with Progress(*columns, DownloadColumn(), TransferSpeedColumn(), console=stderr, transient=True) as bar:
        task = bar.add_task(plain(text), total=None)
        yield lambda num_bytes, total: bar.update(task, completed=num_bytes, total=total)


class _Lines:
    """One transfer as lines of a log."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._started_at = self._shown_at = time.monotonic()

    def advance(self, num_bytes: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._shown_at < LINE_SECONDS:
            return
        self._shown_at = now
        whole = f" of {size(total)}" if total else ""
        rate = size(round(num_bytes / (now - self._started_at)))
        _line(f"{self._text}: {size(num_bytes)}{whole}, {rate}/s")


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """For an answer that says nothing until it is there: a spinner, or a line where it takes long."""
    if stderr.is_terminal:
        with stderr.status(literal(text)):
            yield
        return
    timer = threading.Timer(LINE_SECONDS, _line, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _line(text: str) -> None:
    stderr.print(literal(text), soft_wrap=True)
