"""Downloads the parts of a model (`service/jobs/results/weights.py`) to this disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from grpo_engine.config.job import ModelSource
from service.jobs.results.weights import ModelParts, WeightsMissing, missing
from service.jobs.store.lineage import StoredWeights
from service.platform.archives import BadArchive, unpack
from service.platform.storage import ObjectMissing, Storage, sha256_file

DOWNLOAD_TRIES = 2


class DamagedObject(Exception):
    """The stored object differs from what was uploaded."""


def fetch_weights(
    parts: ModelParts, model: str, folder: Path, download: Callable[[str, str, Path], None]
) -> ModelSource:
    """Download what is not on this machine into `folder`. Raises WeightsMissing, StorageError.

    `download` takes key, sha256 and target, as `download_verified` does.
    """

    def fetch(stored: StoredWeights, name: str) -> str:
        return str(_unpacked(stored, model, folder / name, download))

    adapter = None if parts.adapter is None else fetch(parts.adapter, "parent_adapter")
    if isinstance(parts.base, StoredWeights):
        return ModelSource(name=parts.name, path=fetch(parts.base, "parent_model"), adapter=adapter)
    entry = parts.base
    return ModelSource(name=parts.name, path=entry.path, revision=entry.revision, adapter=adapter)


def _unpacked(
    stored: StoredWeights, model: str, target: Path, download: Callable[[str, str, Path], None]
) -> Path:
    packed = target.with_suffix(".tar.gz")
    try:
        download(stored.storage_key, stored.sha256, packed)
        unpack(packed, target)
    except ObjectMissing:
        raise missing(model) from None
    except (DamagedObject, BadArchive) as damage:
        reason = f"the weights of {model} ({stored.job.id}) are damaged: {damage}"
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
