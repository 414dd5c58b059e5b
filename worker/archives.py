"""Folders → archives.

They are deterministic (sorted names, no times, no owners), so equal weights have equal digests.
"""

from __future__ import annotations

import gzip
import tarfile
from pathlib import Path
from typing import Any


def pack_tar(folder: Path, target: Path) -> None:
    """All files beneath `folder`, at the archive's top level."""
    with target.open("wb") as file:
        _write_tar(folder, file)


def pack_tar_gz(folder: Path, target: Path) -> None:
    """The same, compressed lightly: weights do not shrink."""
    with (
        target.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0) as compressed,
    ):
        _write_tar(folder, compressed)


def _write_tar(folder: Path, file: Any) -> None:
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size, entry.mode, entry.mtime = path.stat().st_size, 0o644, 0
            with path.open("rb") as content:
                archive.addfile(entry, content)
