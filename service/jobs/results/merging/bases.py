"""A base model's files: in a folder of this machine, or in the stored archive of an earlier job's weights.

Both give the files one after the other, once: an archive is a stream, and nothing of it is unpacked anywhere.
Boundary: which files a model is made of, and their bytes.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple, Protocol

from grpo_engine.files.fingerprint import fingerprint
from grpo_engine.files.safetensors_index import INDEX, SINGLE, BadTensors, Tensor, read_tensors, shards
from service.jobs.results.merging.errors import BaseUnusable
from service.platform.storage import Storage

WEIGHTS = ".safetensors"
TEXTS = {".json", ".txt", ".model", ".jinja", ".tiktoken"}
LICENSES = ("LICENSE", "NOTICE", "USE_POLICY")
TEMPLATES = "additional_chat_templates"
OTHERS = {"README.md", "manifest.json", "adapter_config.json", "pytorch_model.bin.index.json"}
"""Texts that speak of something else than the merged model."""
CHUNK_BYTES = 2**20


class File(NamedTuple):
    """One file of a model, open until the next one is asked for. It is read forwards."""

    name: str
    num_bytes: int
    content: IO[bytes]


@dataclass(frozen=True)
class Member:
    """What is known of one file."""

    name: str
    num_bytes: int
    tensors: tuple[Tensor, ...]
    """In the order of their bytes; none where it holds no weights."""


class Base(Protocol):
    """A model's files."""

    @property
    def identity(self) -> str:
        """Another one where a file is another one."""

    def files(self) -> Iterator[File]:
        """Raises BaseUnusable, OSError, StorageError."""

    def members(self) -> tuple[Member, ...]:
        """Those that the model is made of, in their order. Raises as `files` does."""

    def fingerprint(self) -> str:
        """As the engine's `fingerprint` has it; empty where nothing can change. Raises as `files` does."""


@dataclass(frozen=True)
class Folder:
    """A model in a folder. Its files are known by name, size and time."""

    path: Path

    @property
    def identity(self) -> str:
        stats = [(name, path.stat()) for name, path in self._paths()]
        stamps = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
        return sha256(json.dumps(stamps).encode()).hexdigest()

    def files(self) -> Iterator[File]:
        for name, path in self._paths():
            with path.open("rb") as content:
                yield File(name, os.fstat(content.fileno()).st_size, content)

    def members(self) -> tuple[Member, ...]:
        return _members(self.files())

    def fingerprint(self) -> str:
        try:
            return fingerprint(self.path)
        except ValueError as error:
            raise BaseUnusable(str(error)) from error

    def _paths(self) -> list[tuple[str, Path]]:
        paths = [*self.path.glob("*"), *self.path.glob(f"{TEMPLATES}/*")]
        found = [(path.relative_to(self.path).as_posix(), path) for path in sorted(paths) if path.is_file()]
        return [(name, path) for name, path in found if _is_wanted(name)]


@dataclass(frozen=True)
class Archive:
    """A stored tar.gz, as the worker packs all weights of a model."""

    storage: Storage
    key: str
    sha256: str

    @property
    def identity(self) -> str:
        return self.sha256

    def files(self) -> Iterator[File]:
        source = io.BufferedReader(_Pieces(self.storage.stream(self.key)), CHUNK_BYTES)
        try:
            # not "r|": its files cannot pass over what nobody wants of them. All seeks are forward
            with gzip.GzipFile(fileobj=source) as plain, tarfile.open(fileobj=plain, mode="r:") as tar:
                for entry in tar:
                    content = tar.extractfile(entry) if _is_wanted(entry.name) else None
                    if content is not None:
                        yield File(entry.name, entry.size, content)
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise BaseUnusable(f"the stored archive is damaged: {error}") from error

    def members(self) -> tuple[Member, ...]:
        return _members_of_archive(self)

    def fingerprint(self) -> str:
        return ""  # what is stored is known by its digest


@lru_cache(maxsize=16)
def _members_of_archive(archive: Archive) -> tuple[Member, ...]:
    """It is read to its end for this, and never changes."""
    return _members(archive.files())


def _members(files: Iterable[File]) -> tuple[Member, ...]:
    found, index = [], b""
    for file in files:
        try:
            tensors = read_tensors(file.content) if file.name.endswith(WEIGHTS) else ()
        except BadTensors as error:
            raise BaseUnusable(f"{file.name}: {error}") from error
        if file.name == INDEX:
            index = file.content.read()
        if tensors and tensors[-1].end != file.num_bytes:
            raise BaseUnusable(f"{file.name} is not whole")
        found.append(Member(file.name, file.num_bytes, tensors))
    try:
        weights = shards({each.name for each in found}, index)
    except BadTensors as error:
        raise BaseUnusable(str(error)) from error
    return tuple(each for each in found if each.name in weights or _is_text(each.name, weights))


def _is_text(name: str, weights: set[str]) -> bool:
    return not name.endswith(WEIGHTS) and (name != INDEX or SINGLE not in weights)


def _is_wanted(name: str) -> bool:
    path = PurePosixPath(name)
    if name in OTHERS or path.name.startswith(".") or path.parent.as_posix() not in (".", TEMPLATES):
        return False
    return path.suffix in {*TEXTS, WEIGHTS} or path.name.startswith(LICENSES)


class _Pieces(io.RawIOBase):
    """Pieces of bytes as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        num_bytes = min(len(buffer), len(self._rest))
        buffer[:num_bytes] = self._rest[:num_bytes]
        self._rest = self._rest[num_bytes:]
        return num_bytes
