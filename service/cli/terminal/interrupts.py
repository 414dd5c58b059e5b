"""Ctrl-C while something is on its way: the command ends and says what that means for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from service.cli.terminal.errors import CommandError

EXIT_CODE = 130
"""As shells have it: 128 and the signal's number."""


class Interrupted(CommandError):
    """The user has ended the command; the message says what has become of what it did."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="interrupted")

    def line(self) -> str:
        return self.message


@contextmanager
def explained(meaning: str | Callable[[], str]) -> Iterator[None]:
    """Raises Interrupted for Ctrl-C. `meaning`: what is true then, or who knows it."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise Interrupted(meaning if isinstance(meaning, str) else meaning()) from error
