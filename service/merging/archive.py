"""A merged model as an uncompressed tar whose length is known before it is made, in full or in part.

Boundary: names, sizes and order; what the files hold is `layout.py`'s.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from service.merging.layout import Merged

END_BYTES = 2 * tarfile.BLOCKSIZE


@dataclass(frozen=True)
class MergedArchive:
    """`texts`: files that are the merged model's own, first in the archive."""

    merged: Merged
    texts: Mapping[str, bytes]

    @property
    def num_bytes(self) -> int:
        sizes = [(name, len(text)) for name, text in self.texts.items()]
        sizes += [(each.name, each.num_bytes) for each in self.merged.members]
        return sum(len(_header(name, size)) + size + _padding(size) for name, size in sizes) + END_BYTES

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The archive's bytes from `start` up to `end`."""
        position = 0
        for name, text in self.texts.items():
            whole = _header(name, len(text)) + text + bytes(_padding(len(text)))
            yield whole[max(0, start - position) : max(0, end - position)]
            position += len(whole)
        for file in self.merged.files():
            header = _header(file.name, file.num_bytes)
            first = position + len(header)
            last = first + file.num_bytes
            yield header[max(0, start - position) : max(0, end - position)]
            low, high = max(0, start - first), min(file.num_bytes, end - first)
            if low < high:
                yield from self.merged.pieces(file, low, high)
            position = last + _padding(file.num_bytes)
            yield bytes(max(0, min(position, end) - max(last, start)))
            if position >= end:
                return
        yield bytes(max(0, min(position + END_BYTES, end) - max(position, start)))

    def write(self, folder: Path) -> None:
        """The same files into a new folder."""
        folder.mkdir(parents=True)
        for name, text in self.texts.items():
            (folder / name).write_bytes(text)
        for file in self.merged.files():
            path = folder / file.name
            path.parent.mkdir(exist_ok=True)
            with path.open("xb") as target:
                target.writelines(self.merged.pieces(file))


def _header(name: str, num_bytes: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime, entry.size = 0o644, 0, num_bytes
    return entry.tobuf(tarfile.PAX_FORMAT)


def _padding(num_bytes: int) -> int:
    return -num_bytes % tarfile.BLOCKSIZE
