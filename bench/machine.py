"""Measures the limits of this machine, to which `fraction_of_peak` is relative."""

import platform
import re
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grpo_engine.models.fast.products import product
from grpo_engine.training.run_description import library_versions

MATRIX = {"cpu": 2048, "cuda": 8192}
"""Rows and columns of the product that is measured."""
ROUNDS = 12
COPIED_BYTES = {"cpu": 2**26, "cuda": 2**31}
NOMINAL = (
    ("H200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("A100", 312e12),
)
"""Dense bfloat16 operations per second from NVIDIA's data sheets, by the first name that matches."""


def matrix_rate(device: str, dtype: torch.dtype, threads: int, size: int | None = None) -> float:
    """Floating point operations per second of the fastest of several large matrix products.

    Small products decide between torch and the engine; on some processors, torch's are slow in bfloat16.
    """
    torch.set_num_threads(threads)
    size = size or MATRIX[torch.device(device).type]
    small, large = (torch.randn(2, width, width, device=device).to(dtype) for width in (size // 4, size))
    ways: list[Callable[[Tensor, Tensor], Tensor]] = [torch.matmul, product]
    fastest = min(ways, key=lambda way: _product_seconds(way, small))
    return 2 * size**3 / _product_seconds(fastest, large)


def _product_seconds(way: Callable[[Tensor, Tensor], Tensor], operands: Tensor) -> float:
    """The shortest time of several products of the two matrices, in seconds."""
    fastest = float("inf")
    for _ in range(ROUNDS):
        settle()
        began = time.perf_counter()
        way(*operands)
        settle()
        fastest = min(fastest, time.perf_counter() - began)
    return fastest


def machine_name(device: str = "cpu") -> str:
    """The processor and the number of threads, or the GPU, as a file name."""
    if torch.device(device).type == "cuda":
        return _slug(torch.cuda.get_device_name())
    return f"{_slug(_processor())}-{torch.get_num_threads()}-threads"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*: (.+)", info.read_text()) if info.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def describe(device: str, dtype: torch.dtype, threads: int, matrix_size: int | None = None) -> dict[str, Any]:
    """The machine's name and limits, and the versions of the measured libraries."""
    on_gpu = torch.device(device).type == "cuda"
    name = torch.cuda.get_device_name() if on_gpu else machine_name(device)
    other = {each: version(each) for each in ("trl", "vllm") if find_spec(each)}
    return {
        "name": name,
        "file_name": machine_name(device),
        "nominal_flops_per_second": next((rate for part, rate in NOMINAL if part in name), None),
        "matrix_flops_per_second": matrix_rate(device, dtype, threads, matrix_size),
        "copy_bytes_per_second": copy_rate(device),
        "memory_bytes": torch.cuda.mem_get_info()[1] if on_gpu else None,
        "threads": threads,
        "versions": {**library_versions(), **other},
    }


def copy_rate(device: str) -> float:
    """Bytes per second that the fastest of several large copies reads and writes."""
    size = COPIED_BYTES[torch.device(device).type]
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target, fastest = torch.empty_like(source), float("inf")
    for _ in range(ROUNDS):
        settle()
        began = time.perf_counter()
        target.copy_(source)
        settle()
        fastest = min(fastest, time.perf_counter() - began)
    return 2 * size / fastest


def settle() -> None:
    """Wait until the GPU has finished its queued work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
