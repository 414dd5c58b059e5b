"""The device that a run computes on. A missing GPU is an error, never a run on the CPU."""

import os

import torch

from grpo_engine.config.job import Runtime
from grpo_engine.contract.errors import ConfigError, MachineError
from grpo_engine.process.gpus import VISIBLE_DEVICES, count_visible_gpus


def choose_device(runtime: Runtime) -> torch.device:
    """The configured device; "auto" is the first GPU, or the CPU if the machine has no GPU.

    Raises ConfigError, and MachineError if torch does not see the machine's GPUs.
    """
    device = torch.device("cuda" if runtime.device == "auto" else runtime.device)
    if device.type != "cuda" or torch.cuda.is_available():
        return device
    if count := count_visible_gpus(os.environ):
        shown = f"{VISIBLE_DEVICES}={os.environ.get(VISIBLE_DEVICES, 'unset')}"
        raise MachineError(
            f"torch {torch.__version__} sees none of this machine's {count} GPUs ({shown}): check the "
            "driver, and that torch is built for CUDA; runtime.device cpu trains on the CPU"
        )
    if runtime.device == "auto":
        return torch.device("cpu")
    raise ConfigError(f"runtime.device is {runtime.device!r}, but no CUDA device is available")
