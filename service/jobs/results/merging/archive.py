"""A merged model as an uncompressed tar whose length is known before it is made, in full or in part.

Boundary: names, sizes, order, and the texts beside the weights; what the files hold is `layout.py`'s.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from grpo_engine.files.fingerprint import is_other_base, told_by_adapter
from service.jobs.results.manifest import text
from service.jobs.results.merging.bases import Base
from service.jobs.results.merging.errors import BaseChanged, BaseUnusable
from service.jobs.results.merging.layout import Merged, planned
from service.jobs.results.merging.lora import read_adapter
from service.jobs.results.merging.rounding import arithmetic
from service.jobs.results.model_card import model_card
from service.jobs.results.vllm_command import MERGED

CARD, MANIFEST = "README.md", "manifest.json"
END_BYTES = 2 * tarfile.BLOCKSIZE


@dataclass(frozen=True)
class MergedArchive:
    """`texts`: files that are the merged model's own, first in the archive."""

    merged: Merged
    texts: Mapping[str, bytes]

    @property
    def num_bytes(self) -> int:
        sizes = [(name, len(own)) for name, own in self.texts.items()]
        sizes += [(each.name, each.num_bytes) for each in self.merged.members]
        return sum(len(_header(name, size)) + size + _padding(size) for name, size in sizes) + END_BYTES

    def version(self, adapter_sha256: str) -> str:
        """Equal where every byte is: for an entity tag."""
        texts = [sha256(each).hexdigest() for each in self.texts.values()]
        parts = [adapter_sha256, self.merged.identity, arithmetic(), str(self.num_bytes), *texts]
        return sha256(" ".join(parts).encode()).hexdigest()

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The archive's bytes from `start` up to `end`."""
        position = 0
        for name, own in self.texts.items():
            whole = _header(name, len(own)) + own + bytes(_padding(len(own)))
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
        for name, own in self.texts.items():
            (folder / name).write_bytes(own)
        for file in self.merged.files():
            path = folder / file.name
            path.parent.mkdir(exist_ok=True)
            with path.open("xb") as target:
                target.writelines(self.merged.pieces(file))


def merged_archive(base: Base, folder: Path, revision: str | None = None) -> MergedArchive:
    """The unpacked adapter in `folder` merged into `base`, whose revision on the hub is given if it has one.

    Raises NotMergeable, StorageError.
    """
    adapter, manifest = read_adapter(folder), _manifest(folder)
    if None not in (adapter.revision, revision) and adapter.revision != revision:
        reason = f"the adapter was trained on revision {adapter.revision} of its base model"
        raise BaseChanged(f"{reason}, and here is {revision}")
    try:
        merged = planned(base, adapter)
        told = told_by_adapter(folder)
        if told and is_other_base(base.fingerprint(), told):
            raise BaseChanged("the base model has other weights now than when the adapter was trained on it")
        return MergedArchive(merged, _texts(manifest))
    except OSError as error:
        raise BaseUnusable(f"the base model cannot be read: {error.strerror}") from error


def _manifest(folder: Path) -> dict[str, Any]:
    """The adapter's; empty where it is older than manifests."""
    path = folder / MANIFEST
    found: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return found


def _texts(manifest: dict[str, Any]) -> dict[str, bytes]:
    """Card and manifest of what is merged; none without the adapter's manifest."""
    if not manifest:
        return {}
    manifest = manifest | {"weights": MERGED}
    return {CARD: model_card(manifest).encode(), MANIFEST: text(manifest).encode()}


def _header(name: str, num_bytes: int) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.mtime, entry.size = 0o644, 0, num_bytes
    return entry.tobuf(tarfile.PAX_FORMAT)


def _padding(num_bytes: int) -> int:
    return -num_bytes % tarfile.BLOCKSIZE
