"""What this machine can do at most, measured: the mark that `fraction_of_peak` is a share of."""

from __future__ import annotations

import platform
import re
import time
from pathlib import Path

import torch

from grpo_engine.models.fast.products import product

MATRIX = {"cpu": 2048, "cuda": 8192}
ROUNDS = 12


def matrix_rate(device: str, dtype: torch.dtype, threads: int) -> float:
    """Floating point operations a second of a large matrix product: the fastest of some, by any library."""
    torch.set_num_threads(threads)
    size = MATRIX[torch.device(device).type]
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    fastest = float("inf")
    for number in range(ROUNDS):
        started = time.perf_counter()
        left @ right if number % 2 else product(left, right)
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize()
        fastest = min(fastest, time.perf_counter() - started)
    return 2 * size**3 / fastest


def machine_name(device: str = "cpu") -> str:
    """As a file name: the processor and how many of it, or the GPU."""
    if torch.device(device).type == "cuda":
        return _slug(torch.cuda.get_device_name())
    return f"{_slug(_processor())}-{torch.get_num_threads()}-threads"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
