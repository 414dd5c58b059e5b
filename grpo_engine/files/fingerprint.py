"""Whether a base model is still the one that was trained on: its configuration and a sample of its weights.

    sha256(config.json, and of each tensor: name, dtype, shape, sha256 of its first, middle and last KiB)

Training changes most tensors in most places, so a model that was trained further, or another one of the same
shape, differs; how its tensors are spread over files makes no difference. Three small reads a tensor.
Boundary: the standard library only. Left out: the tokenizer, and a tensor changed in a few numbers by hand.
"""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from grpo_engine.contract.errors import BaseChangedError
from grpo_engine.files.safetensors_index import INDEX, Tensor, read_tensors, shards

PIECE_BYTES = 1024


def fingerprint(folder: Path) -> str:
    """Of a model that transformers loads from there. Raises OSError, ValueError."""
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


def is_other_base(found: str, told: str) -> bool:
    """Whether the base that is here differs from the one that was trained on; "" is not known."""
    return bool(found and told and found != told)


def refuse_other_base(found: str, told: str) -> None:
    """What was trained fits the weights that it was trained on and no others. Raises BaseChangedError."""
    if is_other_base(found, told):
        raise BaseChangedError("the base model has other weights now than when this was trained on it")


def told_by_adapter(folder: Path) -> str:
    """The fingerprint in the manifest that lies beside a published adapter; empty where none does."""
    path = folder / "manifest.json"
    told: dict[str, Any] = json.loads(path.read_bytes()) if path.is_file() else {}
    return str(told.get("model", {}).get("fingerprint") or "")
