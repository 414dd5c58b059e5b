"""Which weights a model's name stands for, and how they come to this disk.

A name is a catalogue entry, an earlier job's whole weights, or its adapter on whatever that job went on from.
Boundary: rows and archives; whose names may be used was decided when they were asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from sqlalchemy.orm import Session

from grpo_engine.config import ModelSource
from service.catalog import Catalog, CatalogEntry
from service.jobs import repository
from service.storage import ObjectMissing, Storage, sha256_file
from service.unpack import BadArchive, unpack

T = TypeVar("T")
DOWNLOAD_TRIES = 2


class DamagedObject(Exception):
    """What the storage holds is not what was stored."""


class WeightsMissing(Exception):
    """The model cannot be had; the message says why, `hint` what to do."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Reader(Protocol):
    """One query in a transaction of its own, repeated as its owner sees fit."""

    def __call__(self, query: Callable[[Session], T], /) -> T: ...


@dataclass(frozen=True)
class Archive:
    """A stored tar.gz of weights."""

    job_id: str
    kind: Literal["adapter", "model"]
    storage_key: str
    sha256: str


@dataclass(frozen=True)
class Weights:
    """Everything that a model is made of; equal where the model is."""

    name: str
    """Of the base: what a trained adapter says it belongs to."""
    base: CatalogEntry | Archive
    adapter: Archive | None


def find_weights(read: Reader, catalog: Catalog, tenant: str, model: str) -> Weights:
    """Follows the model to its base. Raises WeightsMissing."""
    name, adapter = model, None
    for _ in range(repository.MAX_LINEAGE):
        entry = catalog.find(name)
        if entry is not None:
            return Weights(name, entry, adapter)
        found = _parent(read, tenant, name)
        if found.kind == "experiences":
            reason = f"{name} is what a training-free job has learnt and has no weights"
            raise WeightsMissing(reason, "Name the model that it was made with.")
        archive = Archive(found.job.id, found.kind, found.storage_key, found.sha256)
        if found.kind == "model":
            return Weights(name, archive, adapter)
        adapter = adapter or archive
        name = found.job.model
    raise WeightsMissing(f"{model} goes on from too many jobs")


def _parent(read: Reader, tenant: str, name: str) -> repository.ModelWeights:
    """The tenant's weights of that name: a job's result or one of its checkpoints."""
    found = read(lambda session: repository.resolve_model(session, tenant, name))
    if found is None:
        raise missing(name)
    return found


def missing(name: str) -> WeightsMissing:
    hint = "List the models with GET /v1/models; a deleted one cannot be used."
    return WeightsMissing(f"the model {name} is not in the catalogue any more", hint)


def fetch_weights(
    weights: Weights, model: str, folder: Path, download: Callable[[str, str, Path], None]
) -> ModelSource:
    """Brings what is not on this machine into `folder`. Raises WeightsMissing, StorageError.

    `download` takes key, sha256 and target, as `download_verified` does.
    """

    def fetch(archive: Archive, name: str) -> str:
        return str(_unpacked(archive, model, folder / name, download))

    adapter = None if weights.adapter is None else fetch(weights.adapter, "parent_adapter")
    if isinstance(weights.base, Archive):
        return ModelSource(name=weights.name, path=fetch(weights.base, "parent_model"), adapter=adapter)
    entry = weights.base
    return ModelSource(name=weights.name, path=entry.path, revision=entry.revision, adapter=adapter)


def _unpacked(archive: Archive, model: str, target: Path, download: Callable[[str, str, Path], None]) -> Path:
    packed = target.with_suffix(".tar.gz")
    try:
        download(archive.storage_key, archive.sha256, packed)
        unpack(packed, target)
    except ObjectMissing:
        raise missing(model) from None
    except (DamagedObject, BadArchive) as damage:
        reason = f"the weights of {model} ({archive.job_id}) are damaged: {damage}"
        raise WeightsMissing(reason, "Start from another model, or train this one again.") from damage
    packed.unlink()
    return target


def download_verified(
    storage: Storage, key: str, sha256: str, target: Path, patiently: Callable[[Callable[[], None]], None]
) -> None:
    """Fetch what was stored, and a second time where it is not that. Raises ObjectMissing, DamagedObject."""
    for _ in range(DOWNLOAD_TRIES):
        patiently(lambda: storage.download(key, target))
        if sha256_file(target) == sha256:
            return
    raise DamagedObject("what is stored has the wrong sha256")
