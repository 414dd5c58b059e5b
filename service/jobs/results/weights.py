"""Which weights a model's name stands for.

A name is a catalogue entry, an earlier job's whole weights, or its adapter on whatever that job went on from.
Boundary: rows; whose names may be used was decided when they were asked for. The worker fetches the files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

from sqlalchemy.orm import Session

from service.jobs.store import repository
from service.platform.catalog import Catalog, CatalogEntry

T = TypeVar("T")


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
