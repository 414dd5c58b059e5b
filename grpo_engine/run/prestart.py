"""Starts an engine before its job: imports what every job needs, then waits for one.

    python -m grpo_engine --warm

The job is one line on standard input, `{"directory": …, "arguments": ["--config", …], "environment": {…}}`.
Then the process continues as if it had been started in that directory with those arguments and these
additional variables. Boundary: imports only. No device is initialised, no random number drawn and no thread
started, so waiting costs only memory and the job computes the same numbers as in a fresh process.
"""

import importlib
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from grpo_engine.config.job import RunConfig, hyperparameters_of
from grpo_engine.process.setup import without_garbage_collector

LOADED_AHEAD = ("grpo_engine.run.build", "peft.utils.transformers_weight_conversion")
"""All modules that a job imports, and those that its libraries import while loading a model."""
QUANTIZED = "peft.tuners.lora.bnb"
"""PEFT's module that imports bitsandbytes for every adapter, if bitsandbytes is installed."""


def load_ahead() -> None:
    """Import the engine, which takes seconds."""
    with without_garbage_collector():
        for name in LOADED_AHEAD:
            importlib.import_module(name)
        if find_spec("bitsandbytes") is not None:
            importlib.import_module(QUANTIZED)


def leave_out_bitsandbytes(config: RunConfig) -> None:
    """Hide bitsandbytes from PEFT, which would import it, unless the job or its stored base is quantised.

    This saves a second. It has no effect if bitsandbytes is already imported, or if the base is not a folder
    on this machine.
    """
    stored = Path(config.model.path) / "config.json"
    is_plain = stored.is_file() and "quantization_config" not in stored.read_text()
    if is_plain and getattr(hyperparameters_of(config.method), "quantization", None) is None:
        sys.modules.setdefault("bitsandbytes", None)  # type: ignore[arg-type]


def await_job() -> list[str]:
    """Wait for the job and return its arguments; enters its directory and closes standard input.

    Exits with status 0 if standard input ends first, because the parent has ended.
    """
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        sys.exit(0)
    job = json.loads(line)
    os.chdir(job["directory"])
    os.environ.update(job["environment"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    arguments: list[str] = job["arguments"]
    sys.argv[1:] = arguments
    return arguments
