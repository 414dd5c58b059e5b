"""A model's process that does not start says why, so that its slot becomes free."""

import threading
from pathlib import Path

from grpo_engine.config.job import ModelSource
from service.jobs.results.weights import ModelParts
from service.platform.catalog import Catalog
from service.serving.repository import ClaimedModel
from service.settings import Settings
from tests.conftest import on_sqlite
from worker.serving.model_process import BROKEN, ModelProcess


@on_sqlite
def test_a_process_without_a_folder_has_ended(settings: Settings, tmp_path: Path) -> None:
    entry = Catalog(settings).find("tiny")
    assert entry is not None
    in_the_way = tmp_path / "chat"
    in_the_way.touch()  # refuses a folder, as a full disk does
    process = ModelProcess(
        ClaimedModel("key", 1, "acme", "tiny"),
        ModelParts("tiny", entry, None),
        lambda folder: ModelSource(name="tiny", path=str(folder)),
        in_the_way / "0",
        settings,
        threading.Event(),
    )
    process.start()
    process.join(60)
    assert process.ending == BROKEN
