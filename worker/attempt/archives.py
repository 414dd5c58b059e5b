"""Folders → archives.

They are deterministic (sorted names, no times, no owners), so equal weights have equal digests.
"""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any


def pack_tar(folder: Path, target: Path, texts: Mapping[str, str] = MappingProxyType({})) -> None:
    """All files beneath `folder`, at the archive's top level; `texts` are added and win over files."""
    with target.open("wb") as file:
        _write_tar(folder, file, texts)


def pack_tar_gz(folder: Path, target: Path, texts: Mapping[str, str] = MappingProxyType({})) -> None:
    """The same, compressed lightly: weights do not shrink."""
    with (
        target.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0) as compressed,
    ):
        _write_tar(folder, compressed, texts)


def _write_tar(folder: Path, file: Any, texts: Mapping[str, str] = MappingProxyType({})) -> None:
    files: dict[str, Path | bytes] = {
        path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()
    }
    files |= {name: text.encode() for name, text in texts.items()}
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, source in sorted(files.items(), key=lambda pair: PurePosixPath(pair[0])):
            _add(archive, name, source)


def _add(archive: tarfile.TarFile, name: str, source: Path | bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime = 0o644, 0
    entry.size = len(source) if isinstance(source, bytes) else source.stat().st_size
    with io.BytesIO(source) if isinstance(source, bytes) else source.open("rb") as content:
        archive.addfile(entry, content)
