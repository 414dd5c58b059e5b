"""A dataset on its way to the service, with its progress, and what Ctrl-C means on the way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.cli.http.client import Client
from service.cli.terminal.interrupts import explained
from service.cli.terminal.progress import Advance, transfer

BUFFER_BYTES = 2**20


@dataclass
class Sent:
    """How far an upload is."""

    advance: Advance
    is_whole: bool = False

    def __call__(self, num_bytes: int, total: int | None) -> None:
        self.is_whole = num_bytes == total
        self.advance(num_bytes, total)

    def meaning(self) -> str:
        """Of Ctrl-C now."""
        if self.is_whole:
            return "The whole file was sent and may be stored: `grpo files list` shows it. There is no job."
        return "The upload was broken off: nothing was stored and nothing created."


def uploaded(client: Client, path: Path) -> dict[str, Any]:
    """The file as the service has it. Raises CommandError, Interrupted."""
    with transfer(f"upload {path.name}") as advance:
        sent = Sent(advance)
        with explained(sent.meaning):
            return client.upload(path, sent)


def rows_in(path: Path) -> int:
    """Lines of a JSONL file; 0 where rows cannot be counted so."""
    if path.suffix == ".parquet":
        return 0
    with path.open("rb") as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(BUFFER_BYTES), b""))
