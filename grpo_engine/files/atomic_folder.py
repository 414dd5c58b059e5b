"""Folders that are complete or invisible: written under another name, fsynced, then renamed.

.tmp-step-00000020/ → every file → manifest.json → rename to step-00000020/ → fsync the parent
"""

import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from grpo_engine.contract import manifest
from grpo_engine.contract.errors import DiskFullError
from grpo_engine.process.fault_points import fault_point


def step_name(step: int) -> str:
    """Folder name of a step's checkpoint."""
    return f"step-{step:08d}"


@contextmanager
def new_checkpoint(folder: Path, step: int) -> Iterator[Path]:
    """Yield an empty folder to write and `seal`; it becomes `folder/step-…` at the end.

    Raises DiskFullError. After any error the earlier checkpoints are intact.
    """
    final = folder / step_name(step)
    temporary = folder / f".tmp-{final.name}"
    try:
        for leftover in (temporary, final):
            if leftover.exists():
                shutil.rmtree(leftover)
        temporary.mkdir(parents=True)
        yield temporary
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"no space left for the checkpoint of step {step}") from error
        raise
    fault_point("checkpoint.sealed")
    temporary.rename(final)
    _fsync(folder)
    fault_point("checkpoint.renamed")


def seal(folder: Path, facts: Mapping[str, Any]) -> None:
    """Fsync all files, then the manifest with these facts, then the folders."""
    for path in folder.rglob("*"):
        if path.is_file():
            _fsync(path)
    _fsync(manifest.write(folder, facts))
    for sub in (*(path for path in folder.rglob("*") if path.is_dir()), folder):
        _fsync(sub)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
