"""How the weights that a model's name stands for (`service/jobs/results/weights.py`) come to this disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from grpo_engine.config.job import ModelSource
from service.jobs.results.weights import Archive, Weights, WeightsMissing, missing
from service.platform.storage import ObjectMissing, Storage, sha256_file
from service.platform.unpack import BadArchive, unpack

DOWNLOAD_TRIES = 2


class DamagedObject(Exception):
    """What the storage holds is not what was stored."""


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
