"""A job's adapter merged into its base model: whether that can be, and everything it takes.

Boundary: decides and opens; the bytes are `archive.py`'s, HTTP is the endpoint's. No database session is open
while anything is fetched, planned or sent.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy.orm import Session

from service.jobs.results.merging.bases import Archive, Base, Folder
from service.jobs.results.merging.errors import NotMergeable
from service.jobs.results.weights import ModelParts, WeightsMissing, model_parts
from service.jobs.store.lineage import StoredWeights, kind_of, lineage_of
from service.jobs.store.repository import require_job
from service.platform.catalog import Catalog, CatalogEntry
from service.platform.db import Database
from service.platform.errors import InvalidRequest, NotFound, Unprocessable
from service.platform.storage import ObjectMissing, Storage, sha256_file
from service.platform.unpack import BadArchive, unpack
from service.web.limits import ConcurrencyLimit

if TYPE_CHECKING:
    from service.jobs.results.merging.archive import MergedArchive

T = TypeVar("T")
IN_ALL, RETRY_SECONDS = 8, 30
ELSEWHERE = "`grpo merge JOB --base FOLDER` merges where the base model is"


def merge_limit(per_tenant: int) -> ConcurrencyLimit:
    """The limit of merges in one API process: each needs a processor and a folder for its adapter."""
    return ConcurrencyLimit("merges", per_tenant, IN_ALL, code="too_many_merges", retry_seconds=RETRY_SECONDS)


@dataclass(frozen=True)
class Merging:
    """Of one deployment."""

    database: Database
    storage: Storage
    catalog: Catalog
    limit: ConcurrencyLimit

    def base_of(self, tenant: str, job_id: str) -> ModelParts | None:
        """What the job's adapter belongs to; None where the job trained all weights and has them whole.

        Raises NotFound, InvalidRequest for a job without weights, Unprocessable where the base is gone.
        """
        with self.database.reading() as session:
            job = require_job(session, tenant, job_id)
            kind = kind_of(job)
        if kind == "experiences":
            message = f"{job_id} is training-free: it has lessons, and no adapter to merge"
            raise InvalidRequest(message, param="format", code="model_without_weights")
        if kind == "model":
            return None
        try:
            return model_parts(self._read(lambda s: lineage_of(s, tenant, job.model)), self.catalog)
        except WeightsMissing as gone:
            raise _impossible(str(gone), "base_model_missing") from gone

    def _read(self, query: Callable[[Session], T]) -> T:
        with self.database.reading() as session:
            return query(session)

    @contextmanager
    def merged(self, tenant: str, adapter: StoredWeights, found: ModelParts) -> Iterator[MergedArchive]:
        """Everything that the download needs, until the block ends. Raises ServiceError, StorageError."""
        # it loads numpy, a tenth of what an API process takes to start, and few ever merge
        from service.jobs.results.merging.archive import merged_archive

        with self.limit.slot(tenant), tempfile.TemporaryDirectory(prefix="grpo-merge-") as scratch:
            folder = self._fetched(adapter, Path(scratch))
            try:
                archive = merged_archive(self._base(found), folder, _revision(found))
            except NotMergeable as error:
                raise _impossible(str(error), error.code) from error
            except ObjectMissing as error:
                reason = f"the weights of {found.name} are no longer stored"
                raise _impossible(reason, "base_model_missing") from error
            yield archive

    def _base(self, found: ModelParts) -> Base:
        if isinstance(found.base, StoredWeights):
            return Archive(self.storage, found.base.storage_key, found.base.sha256)
        folder = found.base.folder or _cached(found.base)
        if folder is None:
            reason = f"the weights of {found.name} are not on the API's machine"
            raise _impossible(f"{reason}: {ELSEWHERE}", "base_model_elsewhere")
        return Folder(folder)

    def _fetched(self, weights: StoredWeights, scratch: Path) -> Path:
        """The adapter, unpacked."""
        packed, folder = scratch / "adapter.tar.gz", scratch / "adapter"
        try:
            self.storage.download(weights.storage_key, packed)
            if sha256_file(packed) != weights.sha256:
                raise BadArchive("its sha256 is another one")
            unpack(packed, folder)
        except ObjectMissing as error:
            raise NotFound("the content is no longer stored", code="content_missing") from error
        except BadArchive as error:
            raise _impossible(f"the stored adapter is damaged: {error}", "content_damaged") from error
        packed.unlink()
        return folder


def _revision(found: ModelParts) -> str | None:
    return found.base.revision if isinstance(found.base, CatalogEntry) else None


def _cached(entry: CatalogEntry) -> Path | None:
    """Where a worker on this machine has left a model of the hub; nothing is asked of the hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(entry.path, revision=entry.revision, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError):
        return None


def _impossible(message: str, code: str) -> Unprocessable:
    return Unprocessable(f"It cannot be merged: {message}.", param="format", code=code)
