"""Packs and unpacks tar archives, plain or gzip. Names in an archive become paths only in this module.

Archives are deterministic (sorted names, no times, no owners), so equal weights have equal digests.
Boundary: the standard library only, without its extraction filters, which Python 3.11.0 lacks.
"""

import gzip
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal

GZIP_MAGIC = b"\x1f\x8b"
MAX_NAME_BYTES = 255


class BadArchive(Exception):
    """The archive is incomplete, or contains more than plain files beneath its top level."""


def unpack(archive: Path, folder: Path) -> None:
    """Unpack regular files (mode 644) into a new folder. Raises BadArchive; the folder is then unfinished."""
    folder.mkdir(parents=True)
    with archive.open("rb") as file:
        mode: Literal["r:gz", "r:"] = "r:gz" if file.read(2) == GZIP_MAGIC else "r:"
    try:
        with tarfile.open(archive, mode) as tar:
            for member in tar:
                _write(tar, member, folder)
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise BadArchive(str(error)) from error
    except (FileExistsError, NotADirectoryError) as error:
        raise BadArchive("it names a file twice") from error


def _write(tar: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> None:
    target = folder / _checked(member)
    content = tar.extractfile(member)
    assert content is not None
    target.parent.mkdir(parents=True, exist_ok=True)
    with content, target.open("xb") as file:
        shutil.copyfileobj(content, file)
    target.chmod(0o644)


def _checked(member: tarfile.TarInfo) -> PurePosixPath:
    """The member's path, relative and beneath the folder. Raises BadArchive."""
    name = PurePosixPath(member.name)
    if not member.isreg() or member.issparse():
        raise BadArchive(f"{member.name!r} is not a regular file")
    if name.is_absolute() or not name.parts or ".." in name.parts:
        raise BadArchive(f"{member.name!r} points outside of it")
    if any(len(os.fsencode(part)) > MAX_NAME_BYTES for part in name.parts):
        raise BadArchive("a name in it is too long")
    return name


def pack(folder: Path, target: Path, texts: Mapping[str, str] = MappingProxyType({})) -> None:
    """Pack all files beneath `folder`, at the top level; `texts` are added, or replace files.

    `target` becomes a tar.gz if its name says so, lightly compressed: weights do not shrink.
    """
    with target.open("wb") as file:
        if target.suffix == ".gz":
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=1, mtime=0) as compressed:
                _write_tar(folder, compressed, texts)
        else:
            _write_tar(folder, file, texts)


def _write_tar(folder: Path, file: Any, texts: Mapping[str, str]) -> None:
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
