"""A checkpoint of several ranks, here threads: no host shows its folder before the first rank has sealed."""

import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from grpo_engine.contract import manifest
from grpo_engine.contract.errors import DiskFullError
from grpo_engine.files.atomic_folder import new_checkpoint, seal, system_error

NUM_RANKS = 3
FACTS = {"job_id": "ftjob-test"}


@pytest.mark.parametrize("num_hosts", [1, 2, 3])
def test_all_folders_become_visible_together_with_the_manifest(tmp_path: Path, num_hosts: int) -> None:
    folders = [tmp_path / f"host-{rank * num_hosts // NUM_RANKS}" for rank in range(NUM_RANKS)]
    barrier = threading.Barrier(NUM_RANKS)
    entries: dict[str, object] = {}
    for folder in folders:  # of a checkpoint that was damaged, and of a killed rank
        for name in ("step-00000004", ".tmp-step-00000004"):
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "leftover").touch()

    def save(rank: int) -> None:
        name = f"optimizer/rank-{rank}"
        with new_checkpoint(folders[rank], 4, barrier.wait) as temporary:
            (temporary / "optimizer").mkdir(exist_ok=True)
            (temporary / name).write_text(str(rank))
            entries[name] = manifest.entry_of(temporary / name)
            barrier.wait()
            assert not any((folder / "step-00000004").exists() for folder in folders)
            if rank == 0:
                for needed in ("state.json", "adapter"):
                    (temporary / needed).write_text("{}")
                seal(temporary, FACTS, entries)
        assert all((folder / "step-00000004").is_dir() for folder in folders)

    with ThreadPoolExecutor(NUM_RANKS) as ranks:
        list(ranks.map(save, range(NUM_RANKS)))
    for folder in set(folders):
        assert [path.name for path in folder.iterdir()] == ["step-00000004"]
        found = {path.name for path in (folder / "step-00000004").rglob("rank-*")}
        assert found == {f"rank-{rank}" for rank in range(NUM_RANKS) if folders[rank] == folder}
        assert not (folder / "step-00000004" / "leftover").exists()
        assert (folder / "step-00000004" / "manifest.json").exists() is (folder == folders[0])


def test_a_full_disk_is_named_and_leaves_the_earlier_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "step-00000001").mkdir()
    with pytest.raises(DiskFullError, match="checkpoint of step 2"), new_checkpoint(tmp_path, 2, print):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert (tmp_path / "step-00000001").is_dir()
    assert not (tmp_path / "step-00000002").exists()


def test_a_full_disk_is_named_and_cleared_if_safetensors_meets_it(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="checkpoint of step 2"), new_checkpoint(tmp_path, 2, None):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert list(tmp_path.iterdir()) == []


def test_the_error_of_the_system_is_found_in_an_exception_of_safetensors(tmp_path: Path) -> None:
    with pytest.raises(SafetensorError) as caught:
        save_file({"weight": torch.zeros(1)}, tmp_path / "missing" / "model.safetensors")
    assert system_error(caught.value) == errno.ENOENT
    assert system_error(ValueError("no error of the system")) is None
