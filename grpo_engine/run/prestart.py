"""An engine that is started before its job: loads what every job needs, then waits for one.

    python -m grpo_engine --warm

The job is one line on standard input, `{"directory": …, "arguments": ["--config", …, "--run-dir", …]}`; from
then on the process is what it would be if it had been started in that directory with those arguments.
Boundary: modules are loaded and nothing is computed. No device is touched, no random number drawn, no thread
started, so that waiting costs memory only and the job's numbers are those of a fresh process.
"""

from __future__ import annotations

import importlib
import json
import os
import sys

from grpo_engine.process.loading import without_collector

LOADED_AHEAD = ("grpo_engine.run.build", "peft.utils.transformers_weight_conversion")
"""All that a job's imports lead to, and what its libraries import only while they load a model."""


def load_ahead() -> None:
    """Import the engine: seconds of every start."""
    with without_collector():
        for name in LOADED_AHEAD:
            importlib.import_module(name)


def await_job() -> list[str]:
    """Arguments of the job, with its directory entered and standard input closed.

    Ends the process quietly where standard input ends first: who should have sent the job is gone.
    """
    line = sys.stdin.buffer.readline()
    if not line.endswith(b"\n"):
        sys.exit(0)
    job = json.loads(line)
    os.chdir(job["directory"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    arguments: list[str] = job["arguments"]
    sys.argv[1:] = arguments
    return arguments
