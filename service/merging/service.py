"""A job's adapter merged into its base model: whether that can be, and everything it takes.

Boundary: decides and opens; the bytes are `archive.py`'s, HTTP is the endpoint's. No database session is open
while anything is fetched, planned or sent.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from service.catalog import Catalog, CatalogEntry
from service.db import Database
from service.errors import InvalidRequest, NotFound, Unprocessable
from service.jobs import adapters, ancestry, repository
from service.jobs.manifest import text
from service.jobs.model_card import model_card
from service.jobs.reading import require_job
from service.jobs.serving import MERGED
from service.merging.archive import MergedArchive
from service.merging.bases import Archive, Base, BaseUnusable, Folder
from service.merging.layout import planned
from service.merging.lora import NotMergeable, read_adapter
from service.merging.places import Places
from service.merging.rounding import arithmetic
from service.storage import ObjectMissing, Storage, sha256_file
from service.unpack import BadArchive, unpack

CARD, MANIFEST = "README.md", "manifest.json"
ELSEWHERE = "`grpo merge JOB --base FOLDER` merges where the base model is"


@dataclass(frozen=True)
class Merging:
    """Of one deployment."""

    database: Database
    storage: Storage
    catalog: Catalog
    places: Places

    def base_of(self, tenant: str, job_id: str) -> ancestry.Weights | None:
        """What the job's adapter belongs to; None where the job trained all weights and has them whole.

        Raises NotFound, InvalidRequest for a job without weights, Unprocessable where the base is gone.
        """
        with self.database.reading() as session:
            job = require_job(session, tenant, job_id)
            kind = repository.kind_of(job)
            if kind == "experiences":
                message = f"{job_id} is training-free: it has lessons, and no adapter to merge"
                raise InvalidRequest(message, param="format", code="model_without_weights")
            if kind == "model":
                return None
            try:
                return ancestry.find_weights(lambda query: query(session), self.catalog, tenant, job.model)
            except ancestry.WeightsMissing as gone:
                raise _impossible(str(gone), "base_model_missing") from gone

    @contextmanager
    def merged(
        self, tenant: str, adapter: adapters.Weights, found: ancestry.Weights
    ) -> Iterator[MergedArchive]:
        """Everything that the download needs, until the block ends. Raises ServiceError, StorageError."""
        with self.places.taken(tenant), tempfile.TemporaryDirectory(prefix="grpo-merge-") as scratch:
            folder = self._fetched(adapter, Path(scratch))
            yield merged_archive(self._base(found), folder, _revision(found))

    def _base(self, found: ancestry.Weights) -> Base:
        if isinstance(found.base, ancestry.Archive):
            return Archive(self.storage, found.base.storage_key, found.base.sha256)
        folder = found.base.folder or _cached(found.base)
        if folder is None:
            reason = f"the weights of {found.name} are not on the API's machine"
            raise _impossible(f"{reason}: {ELSEWHERE}", "base_model_elsewhere")
        return Folder(folder)

    def _fetched(self, weights: adapters.Weights, scratch: Path) -> Path:
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


def merged_archive(base: Base, folder: Path, revision: str | None = None) -> MergedArchive:
    """The adapter in `folder` merged into `base`, whose revision of the hub is given where it has one.

    Raises Unprocessable with code `not_mergeable`, `base_model_unusable` or `base_model_changed`.
    """
    try:
        adapter = read_adapter(folder)
        if None not in (adapter.revision, revision) and adapter.revision != revision:
            reason = f"the adapter was trained on revision {adapter.revision} of its base, here is {revision}"
            raise _impossible(reason, "base_model_changed")
        return MergedArchive(planned(base, adapter), _texts(folder))
    except NotMergeable as error:
        raise _impossible(str(error), "not_mergeable") from error
    except (BaseUnusable, FileNotFoundError) as error:
        raise _impossible(f"the base model cannot be read: {error}", "base_model_unusable") from error


def version_of(archive: MergedArchive, adapter_sha256: str) -> str:
    """Equal where every byte of the archive is: for an entity tag."""
    texts = [sha256(each).hexdigest() for each in archive.texts.values()]
    parts = [adapter_sha256, archive.merged.identity, arithmetic(), str(archive.num_bytes), *texts]
    return sha256(" ".join(parts).encode()).hexdigest()


def _texts(folder: Path) -> dict[str, bytes]:
    """Card and manifest, out of the adapter's manifest; none where it is older than these."""
    if not (folder / MANIFEST).is_file():
        return {}
    manifest = json.loads((folder / MANIFEST).read_bytes()) | {"weights": MERGED}
    return {CARD: model_card(manifest).encode(), MANIFEST: text(manifest).encode()}


def _revision(found: ancestry.Weights) -> str | None:
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
