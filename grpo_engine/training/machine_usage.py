"""A step's use of the machine: `system/…` metrics of this process and the processes that it started.

They are read from /proc once per step, without a thread. Metrics that the system does not offer are left out.
"""

import os
import time
from contextlib import suppress
from pathlib import Path

import torch

from grpo_engine.sandbox.memory import process_tree

GB = 10**9
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MachineUsage:
    """Measures the use from one call to the next."""

    def __init__(self, device: torch.device | None, num_tokens: int) -> None:
        """`num_tokens`: tokens of all steps before the first one that is measured."""
        self._device, self._num_tokens = device, num_tokens
        self._at, (self._cpu_seconds, _) = time.monotonic(), _processes()

    def since_last(self, num_tokens: int) -> dict[str, float]:
        """Metrics of the time since the last call. CPU: 100% per busy core; memory: in 10^9 bytes."""
        now, (cpu_seconds, resident_bytes) = time.monotonic(), _processes()
        seconds = max(1e-9, now - self._at)
        used = max(0.0, cpu_seconds - self._cpu_seconds)  # the total shrinks when a process is lost
        tokens = num_tokens - self._num_tokens
        self._at, self._cpu_seconds, self._num_tokens = now, cpu_seconds, num_tokens
        found = {"cpu_percent": 100 * used / seconds, "memory_gb": resident_bytes / GB}
        found |= {"tokens_per_second": tokens / seconds, **_of_gpu(self._device)}
        return {f"system/{name}": value for name, value in found.items()}


def _processes() -> tuple[float, int]:
    """CPU seconds and resident bytes of all processes; ended children count in the CPU seconds."""
    seconds, resident = 0.0, 0
    for pid in process_tree(os.getpid()):
        with suppress(OSError):  # the process has just ended
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seconds += sum(map(int, fields[11:15])) / _TICKS
            resident += int(fields[21]) * _PAGE_BYTES
    return seconds, resident


def _of_gpu(device: torch.device | None) -> dict[str, float]:
    """Metrics of the whole GPU, including its use by other processes."""
    if device is None or device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    found = {"gpu_memory_gb": (total - free) / GB}
    with suppress(ImportError, RuntimeError):  # NVML's Python package is optional
        found["gpu_percent"] = float(torch.cuda.utilization(device))
    return found
