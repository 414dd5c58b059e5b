"""A checkpoint's manifest: written last, verified by the engine and the worker before any use."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 2**20
REQUIRED = ("state.json", "optimizer.safetensors")
WEIGHTS = ("adapter/", "model/")
LIBRARY = "experiences/"
"""What a training-free job has instead of weights and an optimiser."""


class DamagedCheckpoint(Exception):
    """The checkpoint does not match its manifest, or belongs to another job."""


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(folder: Path, facts: Mapping[str, Any]) -> Path:
    """Write `manifest.json`: `facts`, and size and SHA-256 of every file in the folder."""
    files = {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256_of(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    target = folder / MANIFEST
    target.write_text(json.dumps({"format": 1, **facts, "files": files}, indent=1, sort_keys=True))
    return target


def verify(folder: Path, job_id: str, config_sha256: str | None = None) -> dict[str, Any]:
    """Return the manifest if every file it names is present and unchanged. Raises DamagedCheckpoint."""
    manifest = _read(folder)
    if manifest.get("job_id") != job_id:
        raise DamagedCheckpoint("its manifest belongs to another job")
    if config_sha256 is not None and manifest.get("config_sha256") != config_sha256:
        raise DamagedCheckpoint("its manifest belongs to another configuration")
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise DamagedCheckpoint("its manifest names no files")
    is_library = any(name.startswith(LIBRARY) for name in files)
    if not files.keys() >= set(REQUIRED[:1] if is_library else REQUIRED):
        raise DamagedCheckpoint("its manifest does not name every required file")
    if not is_library and not any(name.startswith(WEIGHTS) for name in files):
        raise DamagedCheckpoint("its manifest names no weights")
    for name, expected in files.items():
        _verify_file(folder, name, expected)
    return manifest


def _read(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file() or path.stat().st_size > MAX_MANIFEST_BYTES:
        raise DamagedCheckpoint("it has no manifest")
    try:
        manifest = json.loads(path.read_bytes(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint("its manifest is not JSON") from error
    if not isinstance(manifest, dict) or manifest.get("format") != 1:
        raise DamagedCheckpoint("its manifest has an unknown format")
    return manifest


def _verify_file(folder: Path, name: str, expected: Any) -> None:
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\0" in name or str(pure) != name:
        raise DamagedCheckpoint(f"its manifest names {name[:100]!r}, outside of it")
    path = folder / pure
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


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse duplicate names: a reader would see only one of the entries."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate name")
    return found
