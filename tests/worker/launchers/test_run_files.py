"""Operations on a run directory that are repeated because another host failed."""

from pathlib import Path

from grpo_engine.contract.manifest import sha256_of
from service.platform.archives import pack
from service.platform.storage import open_storage
from worker.launchers.run_files import LocalRunFiles


def test_a_folder_is_downloaded_again_over_that_of_a_failed_try(tmp_path: Path) -> None:
    adapter, archive, run = (tmp_path / name for name in ("adapter", "adapter.tar.gz", "run"))
    adapter.mkdir()
    run.mkdir()
    (adapter / "weights").write_text("w")
    pack(adapter, archive)
    files = LocalRunFiles(run, open_storage(f"file://{tmp_path / 'storage'}"))
    files.storage.put("adapter", archive)
    files.download_folder("adapter", sha256_of(archive), "parent_adapter")
    (run / "parent_adapter" / "leftover").touch()
    files.download_folder("adapter", sha256_of(archive), "parent_adapter")
    assert [path.name for path in (run / "parent_adapter").iterdir()] == ["weights"]
