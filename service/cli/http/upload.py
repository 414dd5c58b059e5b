"""Uploads a dataset: converted to JSONL if it is another format, with progress, and what Ctrl-C means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.cli.http.client import Client
from service.cli.terminal.errors import CommandError
from service.cli.terminal.interrupts import explained
from service.cli.terminal.progress import Advance, transfer


@dataclass
class Sent:
    """Progress of an upload."""

    advance: Advance
    is_whole: bool = False

    def __call__(self, num_bytes: int, total: int | None) -> None:
        self.is_whole = num_bytes == total
        self.advance(num_bytes, total)

    def meaning(self) -> str:
        """What Ctrl-C means now."""
        if self.is_whole:
            return "The whole file was sent and may be stored: `grpo files list` shows it. There is no job."
        return "Upload interrupted: nothing was stored or created."


@contextmanager
def prepared(
    source: str, *, split: str | None = None, columns: Mapping[str, str] | None = None
) -> Iterator[Path]:
    """The dataset as a JSONL file, converted if it is another format. Raises CommandError."""
    from service.importing.dataset_formats import Unreadable, as_jsonl

    with ExitStack() as stack:
        try:
            path = stack.enter_context(as_jsonl(source, split=split, columns=columns))
        except Unreadable as error:
            raise CommandError(str(error), code="dataset_unreadable") from error
        except OSError as error:
            raise CommandError(f"{source}: {error.strerror or error}") from error
        yield path


def uploaded(
    client: Client, source: str, *, split: str | None = None, columns: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """The dataset as the service stored it, in JSONL. Raises CommandError, Interrupted."""
    with prepared(source, split=split, columns=columns) as path, transfer(f"upload {path.name}") as advance:
        sent = Sent(advance)
        with explained(sent.meaning):
            return client.upload(path, sent)
