"""Folders that are complete or invisible: written under another name, fsynced, then renamed.

.tmp-step-00000020/ → every file → manifest.json → rename to step-00000020/ → fsync the parent
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
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
    temporary, final = _names(folder, step)
    try:
        for leftover in (temporary, final):
            if leftover.exists():
                shutil.rmtree(leftover)
        temporary.mkdir(parents=True)
        yield temporary
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        _refuse_full_disk(error, step)
        raise
    fault_point("checkpoint.sealed")
    temporary.rename(final)
    _fsync(folder)
    fault_point("checkpoint.renamed")


@contextmanager
def shared_checkpoint(folder: Path, step: int, wait: Callable[[], None]) -> Iterator[Path]:
    """`new_checkpoint` for all ranks together, whether they share `folder` or each host has its own.

    `wait` returns when every rank has called it. It is called before anything is written, before the folders
    become visible, so after the first rank has sealed its own, and when all are. After an error the
    unfinished folder remains, because others may be writing; the next checkpoint removes it.
    """
    temporary, final = _names(folder, step)
    for leftover in (temporary, final):
        shutil.rmtree(leftover, ignore_errors=True)  # another rank may be removing it too
    wait()
    try:
        temporary.mkdir(parents=True, exist_ok=True)
        yield temporary
    except OSError as error:
        _refuse_full_disk(error, step)
        raise
    wait()
    fault_point("checkpoint.sealed")
    with suppress(FileNotFoundError):  # another rank of this host has renamed it
        temporary.rename(final)
    _fsync(folder)
    fault_point("checkpoint.renamed")
    wait()


def seal(folder: Path, facts: Mapping[str, Any], shards: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Fsync all files, then the manifest with these facts and the entries of `shards`, then the folders."""
    sync(folder)
    _fsync(manifest.write(folder, facts, shards))
    _fsync(folder)


def sync(folder: Path) -> None:
    """Fsync all files, then the folders."""
    paths = list(folder.rglob("*"))
    for path in (*filter(Path.is_file, paths), *filter(Path.is_dir, paths), folder):
        _fsync(path)


def _names(folder: Path, step: int) -> tuple[Path, Path]:
    final = folder / step_name(step)
    return folder / f".tmp-{final.name}", final


def _refuse_full_disk(error: OSError, step: int) -> None:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise DiskFullError(f"no space left for the checkpoint of step {step}") from error


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
