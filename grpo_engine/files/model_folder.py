"""Finds why a model's folder cannot be loaded, such as an incomplete copy, without reading the weights.

Boundary: files and formats. Whether the model's class is supported is known only to its loader.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from grpo_engine.files.readable import READ
from grpo_engine.files.safetensors_index import INDEX, BadTensors, read_tensors, shards

POINTER = b"version https://git-lfs.github.com/"
"""Start of the small file that Git LFS stores in place of a large one."""
GENERATION = "generation_config.json"
"""Names the tokens that end a completion; transformers ignores it in silence if it is not JSON."""
ADAPTER = "adapter_config.json"
"""transformers loads an adapter from the folder of a model that has this file."""
OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.gguf")
CONVERTED = ("fp8", "mxfp4")
"""Formats of quantised weights that are converted to the job's data type when they are loaded."""
LANGUAGE_PARTS = (
    "gemma3",
    "gemma4",
    "llama4",
    "mistral3",
    "mllama",
    "qwen2_5_vl",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_vl",
    "qwen3_vl_moe",
    "qwen4_exp",
)
"""Types of multimodal models whose language model the engine loads alone."""
Stamp = tuple[tuple[str, int, int], ...]


def damage(folder: Path) -> str | None:
    """The first damaged or missing file and what is wrong with it; None: no damage was found.

    Cached until a file changes. A folder without weights is not damaged: another machine may have them.
    Raises OSError.
    """
    return _damage(folder, tuple(sorted(_stamps(folder))))


def unsupported_format(config: Any, *, is_quantized_again: bool) -> str | None:
    """Why the weights cannot be trained in the format that config.json states; None: they can be.

    `config`: its content. `is_quantized_again`: the job quantises the base itself.
    """
    if not isinstance(config, Mapping):
        return "its config.json is not a JSON object"
    stored = config.get("quantization_config")
    if not isinstance(stored, Mapping):
        return None
    method = stored.get("quant_method", "unknown method")
    if method not in CONVERTED or "text_config" in config:
        return f"its weights are stored quantised ({method}); use the unquantised model"
    if is_quantized_again:
        return f"its weights are stored quantised ({method}); set quantization to null"
    return None


def end_token_fault(ends: Any) -> str | None:
    """Why a model's `eos_token_id` cannot be used; None: it is unset, an integer or a list of integers."""
    numbers = ends if isinstance(ends, list) else [ends]
    if ends is None or all(type(each) is int for each in numbers):  # JSON's true is an instance of int
        return None
    return f"has an eos_token_id that is neither an integer nor a list of integers: {json.dumps(ends)}"


def _stamps(folder: Path) -> Iterator[tuple[str, int, int]]:
    for path in folder.iterdir():
        if path.suffix in READ and path.is_file():
            status = path.stat()
            yield path.name, status.st_mtime_ns, status.st_size


@lru_cache(maxsize=32)
def _damage(folder: Path, stamp: Stamp) -> str | None:
    names = {name for name, _, _ in stamp}
    if pointer := next((name for name in sorted(names) if _is_pointer(folder / name)), None):
        return f"{pointer} is a pointer of Git LFS; fetch the file itself with `git lfs pull`"
    if GENERATION in names and (fault := _generation_fault(folder / GENERATION)):
        return f"{GENERATION} {fault}"
    if ADAPTER in names:
        return f"it contains an adapter ({ADAPTER}) besides the model; move the adapter to another folder"
    weights = {name for name in names if name.endswith(".safetensors")}
    if not weights and INDEX not in names:
        return _unsupported_weights(folder)
    try:
        index = (folder / INDEX).read_bytes() if INDEX in names else b""
        found = (_damaged_shard(folder / name) for name in sorted(shards(weights, index)))
        return next((reason for reason in found if reason), None)
    except BadTensors as error:
        return str(error)


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(POINTER)) == POINTER


def _generation_fault(path: Path) -> str | None:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        return "is not a JSON object"
    return end_token_fault(content.get("eos_token_id"))


def _unsupported_weights(folder: Path) -> str | None:
    other = sorted(path.name for pattern in OTHER_WEIGHTS for path in folder.glob(pattern))
    return f"its weights are in {other[0]}; only safetensors are loaded" if other else None


def _damaged_shard(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            tensors = read_tensors(file)
    except BadTensors as error:
        return f"{path.name}: {error}"
    size, expected = path.stat().st_size, tensors[-1].end if tensors else None
    if expected is None or size == expected:
        return None
    return f"{path.name} has {size} bytes, but its header requires {expected}: copy it again"
