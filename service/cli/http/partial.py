"""What has arrived of a download: beside its target, kept over Ctrl-C and a lost service, never mixed.

Its name carries the entity tag, so that only the rest of the same bytes is ever asked for.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from service.cli.terminal.errors import CommandError
from service.cli.terminal.output import size

_TAG = re.compile(r'"[0-9a-f]{64}"')
"""The entity tag of what can be asked for in parts: its SHA-256."""


class Partial:
    """A file that grows. Use `of`."""

    def __init__(self, target: Path, file: IO[bytes], path: Path) -> None:
        self.name = target.name
        self.path = path
        self._file = file
        self._tag_file = path.with_suffix(".etag")
        self._etag = self._tag_file.read_text() if self._tag_file.exists() else ""

    @classmethod
    @contextmanager
    def of(cls, target: Path) -> Iterator[Partial]:
        """The one beside `target`; gone at the end, unless what it holds is of use to the next command.

        Raises CommandError while another command writes into it.
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
        """Headers that ask for the rest; none where nothing is there."""
        if not self._etag or not self.num_bytes:
            return {}
        return {"Range": f"bytes={self.num_bytes}-", "If-Range": self._etag}

    def begin(self, etag: str, *, is_rest: bool) -> None:
        """What comes now has this entity tag, and is all of it or the rest."""
        if not is_rest:
            self._file.truncate(0)
            self._file.seek(0)
        self._etag = etag if _TAG.fullmatch(etag) else ""
        self._tag_file.write_text(self._etag)

    def add(self, chunk: bytes) -> int:
        """The bytes so far."""
        self._file.write(chunk)
        return self.num_bytes

    def sha256(self) -> str:
        self._file.flush()
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def forget(self) -> None:
        """What is there is of no use."""
        self._etag = ""

    def meaning(self) -> str:
        """Of Ctrl-C now."""
        if not self.range:
            return "The download was broken off; nothing of it is kept."
        return f"The download was broken off; the same command goes on after {size(self.num_bytes)}."

    def tidy(self) -> None:
        self._file.flush()
        if not self.range or not self.path.exists():
            self.path.unlink(missing_ok=True)
            self._tag_file.unlink(missing_ok=True)
