"""Reads the complete lines of a log file since the last read, while the file is written and rotated."""

import os
from io import FileIO
from pathlib import Path

MAX_LINE_BYTES = 8000
"""Maximum length of a line; the rest of a longer one is skipped."""
GAP = "[lines may be missing here: the engine printed faster than its log is stored]"
_READ_BYTES = 2**16


class LogReader:
    """A position in one log. A renamed file is read to its end before the next file is opened.

    If a file was rotated twice before it could be opened, it is lost; `GAP` replaces it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._is_closed = False
        self._line = b""
        """The beginning of a line that is still being written."""

    def read(self, max_bytes: int) -> list[str]:
        """The next lines, of about `max_bytes` together; empty if no complete line was written since."""
        lines: list[str] = []
        num_bytes = 0
        while num_bytes < max_bytes and not self._is_closed and (piece := self._next_piece(lines)):
            num_bytes += len(piece)
            *ends, rest = piece.split(b"\n")
            for end in ends:
                lines.append(_decoded(self._line + end))
                self._line = b""
            self._line = _shortened(self._line + rest)
        return lines

    def close(self) -> list[str]:
        """Stop reading; returns the last line if it has no end."""
        line, self._line = self._line, b""
        self._is_closed = True
        if self._file is not None:
            self._file.close()
        return [_decoded(line)] if line else []

    def _next_piece(self, lines: list[str]) -> bytes:
        """The next bytes of the open file or, at its end, of the next file."""
        if self._file is None:
            self._file = _opened(self._old_path) or _opened(self._path)
        if self._file is None:
            return b""
        if piece := self._file.read(_READ_BYTES):
            return piece
        mine = os.fstat(self._file.fileno()).st_ino
        if _inode(self._path) in (mine, None):
            return b""
        if piece := self._file.read(_READ_BYTES):  # written before the rename
            return piece
        self._file.close()
        has_left = _inode(self._old_path) != mine
        self._file = _opened(self._old_path if has_left else self._path)
        if has_left:
            lines.append(GAP)
        return self._file.read(_READ_BYTES) if self._file else b""

    @property
    def _old_path(self) -> Path:
        """The path to which a full file is renamed."""
        return self._path.with_suffix(f"{self._path.suffix}.1")


def _opened(path: Path) -> FileIO | None:
    try:
        return FileIO(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW))
    except OSError:
        return None


def _inode(path: Path) -> int | None:
    """The file's inode; None: there is no such file. As long as a file is open, its inode is not reused."""
    try:
        return path.stat().st_ino
    except OSError:
        return None


def _shortened(line: bytes) -> bytes:
    """An incomplete line, cut to the maximum and without the text that a carriage return overwrites."""
    if b"\r" in line[:-1]:
        line = line[line.rindex(b"\r", 0, -1) + 1 :]
    return line[: MAX_LINE_BYTES + 1]


def _decoded(line: bytes) -> str:
    return line[: MAX_LINE_BYTES + 1].decode("utf-8", "replace")
