"""tar archives, plain or gzip, → files. The one place where an archive's names become paths.

Boundary: the standard library, and of it nothing newer than Python 3.11.0, which has no extraction filters.
"""

from __future__ import annotations

import gzip
import os
import shutil
import tarfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Literal

GZIP_MAGIC = b"\x1f\x8b"
MAX_NAME_BYTES = 255


class BadArchive(Exception):
    """It is no whole archive, or holds more than plain files beneath its top level."""


def unpack(archive: Path, folder: Path) -> None:
    """Into a new folder, regular files only (mode 644). Raises BadArchive; then the folder is unfinished."""
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
        raise BadArchive(f"{member.name!r} lies outside of it")
    if any(len(os.fsencode(part)) > MAX_NAME_BYTES for part in name.parts):
        raise BadArchive("a name in it is too long")
    return name
