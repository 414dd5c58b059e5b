"""A partial download: a file beside its target that survives Ctrl-C and a lost connection.

A second file holds the entity tag, so that only the rest of the same content is ever requested.
"""

from __future__ import annotations

import fcntl
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rich.filesize import decimal

from grpo_engine.contract.manifest import sha256_of
from service.cli.terminal.errors import CommandError

_TAG = re.compile(r'"[0-9a-f]{64}"')
"""Content that can be requested in parts has its SHA-256 as entity tag."""


class Partial:
    """A growing file. Create it with `of`."""

    def __init__(self, target: Path, file: IO[bytes], path: Path) -> None:
        self.name = target.name
        self.path = path
        self._file = file
        self._tag_file = path.with_suffix(".etag")
        self._etag = self._tag_file.read_text() if self._tag_file.exists() else ""

    @classmethod
    @contextmanager
    def of(cls, target: Path) -> Iterator[Partial]:
        """The partial download of `target`; kept afterwards only if the next command can resume it.

        Raises CommandError while another command writes to it.
        """
        path = target.with_name(f".{target.name}.part")
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CommandError(f"{target} is being downloaded by another command") from error
            partial = cls(target, file, path)
            try:
                yield partial
            finally:
                partial.tidy()

    @property
    def num_bytes(self) -> int:
        return self._file.tell()

    @property
    def range(self) -> dict[str, str]:
        """Headers that request the rest; empty if nothing can be resumed."""
        if not self._etag or not self.num_bytes:
            return {}
        return {"Range": f"bytes={self.num_bytes}-", "If-Range": self._etag}

    def begin(self, etag: str, *, is_rest: bool) -> None:
        """Prepares for a response with this entity tag: the rest, or all of the content."""
        if not is_rest:
            self._file.truncate(0)
            self._file.seek(0)
        self._etag = etag if _TAG.fullmatch(etag) else ""
        self._tag_file.write_text(self._etag)

    def add(self, chunk: bytes) -> int:
        """Appends the chunk; returns the bytes so far."""
        self._file.write(chunk)
        return self.num_bytes

    def sha256(self) -> str:
        self._file.flush()
        return sha256_of(self.path)

    def forget(self) -> None:
        """Marks the content as useless."""
        self._etag = ""

    def interrupt_message(self) -> str:
        """Message for Ctrl-C at this moment: whether the download can be resumed."""
        if not self.range:
            return "Download interrupted: nothing was kept."
        return f"Download interrupted: the same command continues after {decimal(self.num_bytes)}."

    def tidy(self) -> None:
        self._file.flush()
        if not self.range or not self.path.exists():
            self.path.unlink(missing_ok=True)
            self._tag_file.unlink(missing_ok=True)
