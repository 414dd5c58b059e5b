"""Folders that are complete or invisible: written under another name, fsynced, then renamed.

.tmp-step-00000020/ → every file → manifest.json → rename to step-00000020/ → fsync the parent
"""

import errno
import os
import re
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
def new_checkpoint(folder: Path, step: int, wait: Callable[[], None] | None) -> Iterator[Path]:
    """Yield an empty folder to write and `seal`; it becomes `folder/step-…` at the end.

    `wait`: for a checkpoint that all ranks write together, in one folder or in one on each host. It returns
    when every rank has called it, so folders become visible only after the first rank has sealed its own.
    Raises DiskFullError. After any error the earlier checkpoints are intact.
    """
    final = folder / step_name(step)
    temporary = folder / f".tmp-{final.name}"
    together = wait or (lambda: None)
    try:
        for leftover in (temporary, final):
            shutil.rmtree(leftover, ignore_errors=True)  # another rank may be removing it too
        together()
        temporary.mkdir(parents=True, exist_ok=True)
        yield temporary
    except Exception as error:
        if wait is None:  # with other ranks, which may still be writing, the next checkpoint removes it
            shutil.rmtree(temporary, ignore_errors=True)
        if system_error(error) in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"no space left for the checkpoint of step {step}") from error
        raise
    together()
    fault_point("checkpoint.sealed")
    with suppress(FileNotFoundError):  # another rank of this host has renamed it
        temporary.rename(final)
    fsync(folder)
    fault_point("checkpoint.renamed")
    together()


def system_error(error: Exception) -> int | None:
    """Number of the operating system's error that caused the exception; None if there is none.

    safetensors raises an exception of its own, whose text ends with `(os error 28)`.
    """
    if isinstance(error, OSError):
        return error.errno
    found = re.search(r"\(os error ([0-9]+)\)", str(error))
    return int(found[1]) if found else None


def seal(folder: Path, facts: Mapping[str, Any], shards: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Fsync all files, then the manifest with these facts and the entries of `shards`, then the folders."""
    sync(folder)
    fsync(manifest.write(folder, facts, shards))
    fsync(folder)


def sync(folder: Path) -> None:
    """Fsync all files, then the folders."""
    paths = list(folder.rglob("*"))
    for path in (*filter(Path.is_file, paths), *filter(Path.is_dir, paths), folder):
        fsync(path)


def fsync(path: Path) -> None:
    """Flush a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
