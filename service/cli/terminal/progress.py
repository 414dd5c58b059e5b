"""Progress on standard error: a live line on a terminal, otherwise an occasional plain line."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from service.cli.terminal.output import literal, note, plain, stderr

LINE_SECONDS = 5.0
"""Time between two lines if the output is not a terminal."""
Advance = Callable[[int, int | None], None]
"""Takes the bytes so far and the total; None: unknown."""


@contextmanager
def transfer(text: str) -> Iterator[Advance]:
    """Shows bytes, their share of the total and their rate."""
    if not stderr.is_terminal:
        yield _lines(text)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn())
    with Progress(*columns, DownloadColumn(), TransferSpeedColumn(), console=stderr, transient=True) as bar:
        task = bar.add_task(plain(text), total=None)
        yield lambda num_bytes, total: bar.update(task, completed=num_bytes, total=total)


def _lines(text: str) -> Advance:
    started_at = shown_at = time.monotonic()

    def advance(num_bytes: int, total: int | None) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if now - shown_at >= LINE_SECONDS:
            shown_at = now
            whole = f" of {decimal(total)}" if total else ""
            rate = decimal(round(num_bytes / (now - started_at)))
            note(f"{text}: {decimal(num_bytes)}{whole}, {rate}/s")

    return advance


@contextmanager
def waiting(text: str) -> Iterator[Callable[[str], None]]:
    """Shows a spinner during a wait, or a line if the wait is long. Yields a function that sets its text."""
    if stderr.is_terminal:
        with stderr.status(literal(text)) as status:
            yield lambda now: status.update(literal(now))
        return
    timer = threading.Timer(LINE_SECONDS, note, [text])
    timer.daemon = True
    timer.start()
    try:
        yield lambda now: None
    finally:
        timer.cancel()
