"""Downloads stored archives, and the parts of a model (`service/jobs/results/weights.py`), to this disk."""

from collections.abc import Callable
from pathlib import Path

from grpo_engine.config.job import ModelSource
from service.jobs.results.weights import ModelParts, WeightsMissing, missing
from service.jobs.store.lineage import StoredWeights
from service.platform.archives import BadArchive, unpack
from service.platform.storage import ObjectMissing, Storage, sha256_file

Download = Callable[[str, str, Path], None]
"""Key, sha256 and target, as of `download_verified`."""
DOWNLOAD_TRIES = 2


class DamagedObject(Exception):
    """The stored object differs from what was uploaded."""


def fetch_weights(parts: ModelParts, model: str, folder: Path, download: Download) -> ModelSource:
    """Download what is not on this machine into `folder`. Raises WeightsMissing, StorageError."""

    def fetch(stored: StoredWeights, name: str) -> str:
        try:
            fetch_folder(download, stored.storage_key, stored.sha256, folder / name)
        except ObjectMissing:
            raise missing(model) from None
        except DamagedObject as damage:
            reason = f"the weights of {model} ({stored.job.id}) are damaged: {damage}"
            raise WeightsMissing(reason, "Start from another model, or train this one again.") from damage
        return str(folder / name)

    adapter = None if parts.adapter is None else fetch(parts.adapter, "parent_adapter")
    if isinstance(parts.base, StoredWeights):
        return ModelSource(name=parts.name, path=fetch(parts.base, "parent_model"), adapter=adapter)
    entry = parts.base
    return ModelSource(name=parts.name, path=entry.path, revision=entry.revision, adapter=adapter)


def fetch_folder(download: Download, key: str, sha256: str, folder: Path) -> None:
    """Download and unpack an archive. Raises StorageError, ObjectMissing, DamagedObject."""
    archive = folder.with_suffix(".tar")
    download(key, sha256, archive)
    try:
        unpack(archive, folder)
    except BadArchive as damage:
        raise DamagedObject(str(damage)) from damage
    archive.unlink()


def download_verified(storage: Storage, key: str, sha256: str, target: Path) -> None:
    """Download an object; retry if its digest differs. Raises StorageError, ObjectMissing, DamagedObject."""
    for _ in range(DOWNLOAD_TRIES):
        storage.download(key, target)
        if sha256_file(target) == sha256:
            return
    raise DamagedObject("the stored object has the wrong sha256")
