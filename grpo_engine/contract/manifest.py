"""A checkpoint's manifest: written last, verified by the engine and the worker before any use."""

import hashlib
import json
from collections.abc import Mapping, Set
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from grpo_engine.contract.strict_json import parse_document

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 2**20
STATE, MOMENTS, SHARDS = "state.json", "optimizer.safetensors", "optimizer/"
"""The run's state; Adam's moments as one file; the folder of their shards, one for each rank."""
WEIGHTS = ("adapter/", "model/")
LIBRARY = "experiences/"
"""Folder of a training-free job's library, which replaces weights and optimiser."""


class DamagedCheckpoint(Exception):
    """The checkpoint does not match its manifest, or belongs to another job."""


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entry_of(path: Path) -> dict[str, Any]:
    """The entry for a file in a manifest."""
    return {"size": path.stat().st_size, "sha256": sha256_of(path)}


def write(folder: Path, facts: Mapping[str, Any], shards: Mapping[str, Any] = MappingProxyType({})) -> Path:
    """Write `manifest.json` with `facts`, and with size and SHA-256 of every file in the folder.

    `shards`: the entries of all shards, which may be on other hosts.
    """
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    files = {name: entry_of(folder / name) for name in sorted(names - shards.keys())} | dict(shards)
    target = folder / MANIFEST
    target.write_text(json.dumps({"format": 1, **facts, "files": files}, indent=1, sort_keys=True))
    return target


def verify(
    folder: Path, job_id: str, config_sha256: str | None = None, *, may_lack_shards: bool = False
) -> dict[str, Any]:
    """Return the manifest if every file it names is present and unchanged. Raises DamagedCheckpoint.

    `may_lack_shards`: shards may be missing, because they are on other hosts (`shards_elsewhere`).
    """
    manifest = _read(folder)
    if manifest.get("job_id") != job_id:
        raise DamagedCheckpoint("its manifest belongs to another job")
    if config_sha256 is not None and manifest.get("config_sha256") != config_sha256:
        raise DamagedCheckpoint("its manifest belongs to another configuration")
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise DamagedCheckpoint("its manifest names no files")
    _refuse_incomplete(files.keys())
    for name, expected in files.items():
        _check_name(name)
        if not (may_lack_shards and _is_elsewhere(folder, name)):
            _verify_file(folder, name, expected)
    return manifest


def shards_elsewhere(folder: Path, files: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a manifest's `files` for shards that are on the disks of other hosts."""
    return {name: entry for name, entry in files.items() if _is_elsewhere(folder, name)}


def _is_elsewhere(folder: Path, name: str) -> bool:
    return name.startswith(SHARDS) and not _is_file_itself(folder, folder / name)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file() or path.stat().st_size > MAX_MANIFEST_BYTES:
        raise DamagedCheckpoint("it has no manifest")
    try:
        manifest = parse_document(path.read_bytes())
    except ValueError as error:
        raise DamagedCheckpoint("its manifest is not JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != 1:
        raise DamagedCheckpoint("its manifest has an unknown format")
    return manifest


def _refuse_incomplete(names: Set[str]) -> None:
    """Require a state, and a library or weights with Adam's moments."""
    folders = {name.partition("/")[0] + "/" for name in names if "/" in name}
    if STATE not in names or not (MOMENTS in names or folders & {SHARDS, LIBRARY}):
        raise DamagedCheckpoint("its manifest does not name every required file")
    if not folders & {*WEIGHTS, LIBRARY}:
        raise DamagedCheckpoint("its manifest names no weights")


def _check_name(name: str) -> None:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\0" in name or str(pure) != name:
        raise DamagedCheckpoint(f"its manifest names {name[:100]!r}, which is outside of the folder")


def _verify_file(folder: Path, name: str, expected: Any) -> None:
    path = folder / name
    if not _is_file_itself(folder, path):
        raise DamagedCheckpoint(f"{name[:100]!r} is missing")
    if not isinstance(expected, dict) or path.stat().st_size != expected.get("size"):
        raise DamagedCheckpoint(f"{name} has the wrong size")
    if sha256_of(path) != expected.get("sha256"):
        raise DamagedCheckpoint(f"{name} has the wrong sha256")


def _is_file_itself(folder: Path, path: Path) -> bool:
    """Whether it is a regular file, reached through no link."""
    try:
        return path.is_file() and path.resolve() == folder.resolve() / path.relative_to(folder)
    except OSError:  # the name is too long for a file
        return False
