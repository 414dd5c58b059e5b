"""Fingerprint of a base model, to detect weights other than those that were trained on.

    sha256(config.json, and of each tensor: name, dtype, shape, sha256 of its first, middle and last KiB)

Training changes most tensors in most places, so further training or another model of the same shape changes
the fingerprint; distributing the tensors over other files does not. Three small reads per tensor.
Not covered: the tokenizer, and a few numbers edited by hand.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from grpo_engine.contract.errors import BaseChangedError
from grpo_engine.files.safetensors_index import INDEX, Tensor, read_tensors, shards

PIECE_BYTES = 1024


def fingerprint(folder: Path) -> str:
    """Fingerprint of the model in a folder. Raises OSError, ValueError."""
    config = json.loads((folder / "config.json").read_bytes())
    index = folder / INDEX
    names = {path.name for path in folder.glob("*.safetensors")}
    found: list[tuple[object, ...]] = []
    for name in shards(names, index.read_bytes() if index.is_file() else b""):
        with (folder / name).open("rb") as file:
            tensors = read_tensors(file)
            found += [(each.name, each.dtype, each.shape, _sampled(file, each)) for each in tensors]
    return sha256(json.dumps([config, sorted(found)], sort_keys=True).encode()).hexdigest()


def _sampled(file: IO[bytes], tensor: Tensor) -> str:
    last = max(tensor.start, tensor.end - PIECE_BYTES)
    digest = sha256()
    for place in (tensor.start, (tensor.start + last) // 2, last):
        file.seek(place)
        digest.update(file.read(min(PIECE_BYTES, tensor.end - place)))
    return digest.hexdigest()


def refuse_other_base(found: str, expected: str) -> None:
    """Raise BaseChangedError if the fingerprints differ. An empty one is unknown and matches any."""
    if found and expected and found != expected:
        raise BaseChangedError("the base model's weights are not those that were trained on")


def fingerprint_of_adapter(folder: Path) -> str:
    """The base's fingerprint in the manifest of a published adapter; empty without one."""
    path = folder / "manifest.json"
    manifest: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return str(manifest.get("model", {}).get("fingerprint") or "")
