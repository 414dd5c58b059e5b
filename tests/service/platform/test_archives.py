"""Archives into folders: plain files only, and nothing of a hostile archive lands elsewhere."""

import io
import os
import tarfile
from pathlib import Path

import pytest

from service.platform.archives import BadArchive, unpack


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.mode = kind, link, 0o4777
    entry.size = 2 if kind == tarfile.REGTYPE else 0
    return entry


def archive_of(folder: Path, *members: tarfile.TarInfo, compression: str = "gz") -> Path:
    """Each regular member holds `hi`."""
    path = folder / "archive"
    with path.open("wb") as file, tarfile.open(fileobj=file, mode=f"w|{compression}") as tar:
        for entry in members:
            tar.addfile(entry, io.BytesIO(b"hi") if entry.size else None)
    return path


@pytest.mark.parametrize("compression", ["", "gz"])
def test_files_and_their_folders_are_unpacked_without_their_modes(tmp_path: Path, compression: str) -> None:
    archive = archive_of(tmp_path, member("a"), member("./b/c"), compression=compression)
    unpack(archive, tmp_path / "new" / "content")
    files = [path for path in (tmp_path / "new" / "content").rglob("*") if path.is_file()]
    found = {str(path.relative_to(tmp_path / "new" / "content")): path.read_text() for path in files}
    assert found == {"a": "hi", "b/c": "hi"}
    assert {path.stat().st_mode & 0o7777 for path in files} == {0o644}


HOSTILE = {
    "a parent's": [member("../escaped")],
    "a hidden parent's": [member("x/../../escaped")],
    "an absolute": [member("/tmp/escaped-from-archive")],
    "a symbolic link": [member("link", tarfile.SYMTYPE, "..")],
    "a file through a link": [member("link", tarfile.SYMTYPE, ".."), member("link/escaped")],
    "a hard link": [member("link", tarfile.LNKTYPE, "/etc/passwd")],
    "a device": [member("device", tarfile.CHRTYPE)],
    "a pipe": [member("pipe", tarfile.FIFOTYPE)],
    "a folder": [member("folder", tarfile.DIRTYPE)],
    "a file twice": [member("twice"), member("./twice")],
    "a file beneath a file": [member("a"), member("a/b")],
    "an endless name": [member("n" * 300)],
    "no name": [member(".")],
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_member_is_refused(tmp_path: Path, case: str) -> None:
    archive = archive_of(tmp_path, *HOSTILE[case])
    with pytest.raises(BadArchive):
        unpack(archive, tmp_path / "content")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "content"]
    assert not any(path.is_symlink() for path in (tmp_path / "content").rglob("*"))


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    """A few bytes could name a file that fills the disk."""
    entry = member("hole")
    entry.pax_headers = {"GNU.sparse.size": "1000000000000", "GNU.sparse.map": "0,2"}
    path = tmp_path / "archive"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(entry, io.BytesIO(b"hi"))
    with pytest.raises(BadArchive, match="not a regular file"):
        unpack(path, tmp_path / "content")


@pytest.mark.parametrize("compression", ["", "gz"])
def test_a_torn_archive_is_refused(tmp_path: Path, compression: str) -> None:
    entry = tarfile.TarInfo("x")
    entry.size = 100_000
    path = tmp_path / "archive"
    with path.open("wb") as file, tarfile.open(fileobj=file, mode=f"w|{compression}") as tar:
        tar.addfile(entry, io.BytesIO(os.urandom(entry.size)))
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(BadArchive):
        unpack(path, tmp_path / "content")


def test_a_file_that_is_not_an_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(b"\x1f\x8bnothing")
    with pytest.raises(BadArchive):
        unpack(tmp_path / "archive", tmp_path / "content")
