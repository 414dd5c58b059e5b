"""Downloads the parts of a model (`service/jobs/results/weights.py`) to where its engine runs."""

from collections.abc import Callable

from grpo_engine.config.job import ModelSource
from service.jobs.results.weights import ModelParts, WeightsMissing, missing
from service.jobs.store.lineage import StoredWeights
from service.platform.storage import ObjectMissing
from worker.launchers.run_files import DamagedObject

DownloadFolder = Callable[[str, str, str], None]
"""Key, sha256 and name, as of `RunFiles.download_folder`."""


def fetch_weights(
    parts: ModelParts, model: str, folder: str, download_folder: DownloadFolder, *, is_here: bool = True
) -> ModelSource:
    """Download what no catalogue has. `folder`: path of the downloaded folders for the engine.

    `is_here`: whether the engine runs on this machine, and can read what was downloaded from the hub.
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
    if is_here and entry.size_bytes is not None and not entry.must_download:
        path = str(entry.folder)
    return ModelSource(name=parts.name, path=path, revision=entry.revision, adapter=adapter)
