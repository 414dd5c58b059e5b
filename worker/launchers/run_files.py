"""Operations on the run directory of an attempt: fill it from the artifact storage, store its files.

`LocalRunFiles` is a folder on this machine. On a cluster the same operations run on each host, in the host's
own folder (`worker/cluster/`), so weights and datasets do not pass through the worker.
Boundary: no retries, no database; `attempt/` decides what is fetched and stored.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from grpo_engine.contract import manifest
from grpo_engine.contract.manifest import DamagedCheckpoint, sha256_of
from service.platform.archives import BadArchive, pack, unpack
from service.platform.storage import ObjectMissing, Storage, StorageError

DOWNLOAD_TRIES = 2
OUTBOX = "outbox"
"""Folder of archives that are being uploaded."""


class DamagedObject(Exception):
    """The stored object differs from what was uploaded."""


@dataclass(frozen=True)
class Stored:
    """An uploaded file."""

    key: str
    sha256: str
    num_bytes: int


@dataclass(frozen=True)
class VerifiedCheckpoint:
    """The manifest's entries (size and sha256) of a checkpoint's files by name."""

    here: Mapping[str, Any]
    """Entries of the files on this host."""
    elsewhere: Mapping[str, Any]
    """Entries of the shards on other hosts."""


class RunFiles(Protocol):
    """Operations on a run directory; names are relative to it. All transfers can raise StorageError."""

    def write(self, name: str, text: str) -> None:
        """Write a text file."""

    def download(self, key: str, sha256: str, name: str) -> None:
        """Download and verify an object. Raises ObjectMissing, DamagedObject."""

    def download_folder(self, key: str, sha256: str, name: str) -> None:
        """Download and unpack an archive to a new folder. Raises ObjectMissing, DamagedObject."""

    def download_checkpoint(
        self, key: str, sha256: str, name: str, job_id: str, shards: Mapping[str, str]
    ) -> None:
        """Download, unpack and verify a checkpoint. Raises DamagedCheckpoint.

        `shards`: key → sha256 of the shards that are stored beside its archive.
        """

    def verify(self, name: str, job_id: str) -> VerifiedCheckpoint:
        """The files of an unchanged checkpoint that this run has written. Raises DamagedCheckpoint."""

    def pack(self, name: str, archive: str, texts: Mapping[str, str]) -> None:
        """Pack a folder and `texts` into the outbox. Raises FileNotFoundError if the folder is gone."""

    def upload(self, name: str, key: str) -> Stored:
        """Upload a file and compare its size."""

    def upload_all(self, keys: Mapping[str, str]) -> list[Stored]:
        """Upload files (name → key), each from the host that has it. All hosts upload at the same time.

        A file that no host has is not in the result.
        """

    def empty_outbox(self) -> None:
        """Delete packed archives."""


@dataclass(frozen=True)
class LocalRunFiles:
    """A run directory on this machine."""

    folder: Path
    storage: Storage

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def download(self, key: str, sha256: str, name: str) -> None:
        target = self.folder / name
        for _ in range(DOWNLOAD_TRIES):
            self.storage.download(key, target)
            if sha256_of(target) == sha256:
                return
        raise DamagedObject("the stored object has the wrong sha256")

    def download_folder(self, key: str, sha256: str, name: str) -> None:
        archive = f"{name}.tar"
        shutil.rmtree(self.folder / name, ignore_errors=True)  # of a try that failed on another host
        self.download(key, sha256, archive)
        try:
            unpack(self.folder / archive, self.folder / name)
        except BadArchive as damage:
            raise DamagedObject(str(damage)) from damage
        (self.folder / archive).unlink()

    def download_checkpoint(
        self, key: str, sha256: str, name: str, job_id: str, shards: Mapping[str, str]
    ) -> None:
        target = self.folder / name
        unpacked = f".partial-{target.name}"
        shutil.rmtree(target, ignore_errors=True)  # of a try that failed on another host
        with _damage_named("its archive"):
            self.download_folder(key, sha256, unpacked)
        for shard_key, shard_sha256 in shards.items():
            shard = PurePosixPath(shard_key).name
            with _damage_named(f"its shard {shard}"):
                self.download(shard_key, shard_sha256, f"{unpacked}/{manifest.SHARDS}{shard}")
        manifest.verify(self.folder / unpacked, job_id)
        target.parent.mkdir(exist_ok=True)
        (self.folder / unpacked).rename(target)

    def verify(self, name: str, job_id: str) -> VerifiedCheckpoint:
        folder = self.folder / name
        files = manifest.verify(folder, job_id, may_lack_shards=True)["files"]
        elsewhere = manifest.shards_elsewhere(folder, files)
        here = {name: entry for name, entry in files.items() if name not in elsewhere}
        return VerifiedCheckpoint(here, elsewhere)

    def pack(self, name: str, archive: str, texts: Mapping[str, str]) -> None:
        if not (self.folder / name).is_dir():
            raise FileNotFoundError(name)
        (self.folder / OUTBOX).mkdir(exist_ok=True)
        pack(self.folder / name, self.folder / OUTBOX / archive, texts)

    def upload(self, name: str, key: str) -> Stored:
        path = self.folder / name
        num_bytes = path.stat().st_size
        self.storage.put(key, path)
        if self.storage.size(key) != num_bytes:
            raise StorageError(f"{key} was stored with the wrong size")
        return Stored(key, sha256_of(path), num_bytes)

    def upload_all(self, keys: Mapping[str, str]) -> list[Stored]:
        return [self.upload(name, key) for name, key in keys.items() if (self.folder / name).is_file()]

    def empty_outbox(self) -> None:
        shutil.rmtree(self.folder / OUTBOX, ignore_errors=True)


@contextmanager
def _damage_named(part: str) -> Iterator[None]:
    """Raise DamagedCheckpoint if this part of it, downloaded inside the block, is missing or damaged."""
    try:
        yield
    except ObjectMissing:
        raise DamagedCheckpoint(f"{part} is missing") from None
    except DamagedObject as damage:
        raise DamagedCheckpoint(f"{part} is damaged: {damage}") from damage
