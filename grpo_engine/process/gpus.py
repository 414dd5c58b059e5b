"""The GPUs that a process may use: how many, which, and how large.

The numbers of device files cannot serve as names of GPUs: in a container with /dev/nvidia2 and /dev/nvidia5,
CUDA counts 0 and 1. GPUs are named by the UUIDs that `nvidia-smi` lists. CUDA_VISIBLE_DEVICES accepts them,
and they mean the same card in every process.
Boundary: the standard library only. Whether CUDA works is not checked (`run/gpu_trial.py`).
"""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
QUERY = ("nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits")
QUERY_SECONDS = 20.0
_DEVICE_FILE = re.compile(r"nvidia\d+")
_LINE = re.compile(r"(GPU-[\w-]+), *(\d+)")


class ListedGpu(NamedTuple):
    uuid: str
    memory_mib: int


def count_visible_gpus(environment: Mapping[str, str], device_folder: Path = Path("/dev")) -> int:
    """Number of GPUs in CUDA_VISIBLE_DEVICES or, if it is unset, of NVIDIA's device files."""
    named = _named_gpus(environment)
    if named is not None:
        return len(named)
    return sum(_DEVICE_FILE.fullmatch(path.name) is not None for path in device_folder.glob("nvidia*"))


def visible_gpus(environment: Mapping[str, str], device_folder: Path = Path("/dev")) -> list[str]:
    """The name of each GPU for CUDA_VISIBLE_DEVICES: the variable's own entries or, if it is unset, the
    UUIDs of all GPUs.

    Without `nvidia-smi`, the names are CUDA's numbers from 0.
    """
    named = _named_gpus(environment)
    if named is not None:
        return named
    count = count_visible_gpus(environment, device_folder)
    listed = [gpu.uuid for gpu in listed_gpus()] if count else []
    return listed or [str(number) for number in range(count)]


def smallest_memory_gb(environment: Mapping[str, str]) -> int:
    """Memory of the smallest visible GPU, in whole units of 10^9 bytes; 0: no GPU, or unknown."""
    listed, named = listed_gpus(), _named_gpus(environment)
    if named is not None:
        listed = [gpu for n, gpu in enumerate(listed) if any(_is_named(n, gpu, name) for name in named)]
    return min((gpu.memory_mib for gpu in listed), default=0) * 2**20 // 10**9


def listed_gpus() -> list[ListedGpu]:
    """The GPUs that the driver lists; none if `nvidia-smi` is missing or fails."""
    try:
        done = subprocess.run(QUERY, capture_output=True, text=True, timeout=QUERY_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    found = map(_LINE.fullmatch, map(str.strip, done.stdout.splitlines()))
    return [ListedGpu(match[1], int(match[2])) for match in found if match]


def _named_gpus(environment: Mapping[str, str]) -> list[str] | None:
    """Names in the variable up to the first invalid one, as in CUDA; None if the variable is unset."""
    if VISIBLE_DEVICES not in environment:
        return None
    named = [name.strip() for name in environment[VISIBLE_DEVICES].split(",")]
    usable = [bool(name) and not name.startswith("-") for name in named]
    return named[: usable.index(False)] if False in usable else named


def _is_named(number: int, gpu: ListedGpu, name: str) -> bool:
    """Whether the name means this GPU. CUDA accepts a number or the beginning of a UUID."""
    return name == str(number) or (name.startswith("GPU-") and gpu.uuid.startswith(name))
