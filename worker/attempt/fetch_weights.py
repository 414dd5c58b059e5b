"""Downloads the parts of a model (`service/jobs/results/weights.py`) to the engine's host."""

from collections.abc import Callable

from grpo_engine.config.job import ModelSource
from service.jobs.results.weights import ModelParts, WeightsMissing, missing
from service.jobs.store.lineage import StoredWeights
from service.platform.storage import ObjectMissing
from worker.launchers.run_files import DamagedObject

DownloadFolder = Callable[[str, str, str], None]
"""Takes key, sha256 and name, as `RunFiles.download_folder` does."""


def fetch_weights(
    parts: ModelParts, model: str, folder: str, download_folder: DownloadFolder, *, is_here: bool = True
) -> ModelSource:
    """Download the parts that no catalogue has. `folder`: the engine's path to the downloads.

    `is_here`: whether the engine runs on this machine, and so can read models downloaded from the hub.
    Raises WeightsMissing, StorageError.
    """

    def fetch(stored: StoredWeights, name: str) -> str:
        try:
            download_folder(stored.storage_key, stored.sha256, name)
        except ObjectMissing:
            raise missing(model) from None
        except DamagedObject as damage:
            reason = f"the weights of {model} ({stored.job.id}) are damaged: {damage}"
            raise WeightsMissing(reason, "Start from another model, or train this one again.") from damage
        return f"{folder}/{name}"

    adapter = None if parts.adapter is None else fetch(parts.adapter, "parent_adapter")
    if isinstance(parts.base, StoredWeights):
        return ModelSource(name=parts.name, path=fetch(parts.base, "parent_model"), adapter=adapter)
    entry, path = parts.base, parts.base.path
    if is_here and entry.folder is None and not entry.is_from_hub:
        reason = f"the folder of {entry.name} is missing on the worker's machine"
        raise WeightsMissing(reason, "Run `grpo doctor` there, which names the folder.")
    if is_here and entry.size_bytes is not None and not entry.must_download:
        path = str(entry.folder)
    return ModelSource(name=parts.name, path=path, revision=entry.revision, adapter=adapter)
