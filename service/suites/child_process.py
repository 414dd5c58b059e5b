"""Starts the child process that generates rows of a suite, or lists its tasks."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, BinaryIO

from grpo_engine.process.parent_death import bound_command
from grpo_engine.sandbox.launch import unprivileged_reader_prefix
from service.suites.models import ReasoningGymDataset, SuiteError

LIMIT_SECONDS = 60
_listing = threading.Lock()
_PASSED_ON = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
_FIXED = {"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def generate(dataset: ReasoningGymDataset, rows: BinaryIO, max_bytes: int) -> dict[str, Any]:
    """Write the dataset's rows to the file `rows`, as JSONL of at most `max_bytes`.

    Returns how many rows' own answers were `checked` and did not score 1 (`wrong`), with the `line`, `answer`
    and `score` of the first of these. Raises SuiteError.
    """
    return _report({"dataset": dataset.model_dump(), "max_bytes": max_bytes}, rows)


def list_tasks() -> Sequence[dict[str, Any]]:
    """`task` and number of `levels` (None without a curriculum) of each task. Raises SuiteError.

    Concurrent callers share one child process.
    """
    with _listing:
        return _listed_tasks()


@cache
def _listed_tasks() -> Sequence[dict[str, Any]]:
    with tempfile.TemporaryFile() as nothing:
        tasks: list[dict[str, Any]] = _report({"dataset": None, "max_bytes": 0}, nothing)["tasks"]
    return tasks


def _report(given: dict[str, Any], rows: BinaryIO) -> dict[str, Any]:
    """What the child process reports on this input. Raises SuiteError."""
    child = [sys.executable, "-P", "-m", "service.suites"]
    prefix = unprivileged_reader_prefix(sys.executable, sys.prefix, __file__)
    try:
        done = subprocess.run(
            [*prefix, *bound_command(child)],
            timeout=LIMIT_SECONDS,
            input=json.dumps(given).encode(),
            stdout=rows,
            stderr=subprocess.PIPE,
            env={name: os.environ[name] for name in _PASSED_ON if name in os.environ} | _FIXED,
            cwd="/",
            check=False,
        )
        report: dict[str, Any] = json.loads(done.stderr.splitlines()[-1])
    except subprocess.TimeoutExpired:
        reason = f"generating the rows takes more than {LIMIT_SECONDS} s: lower size or difficulty"
        raise SuiteError("", reason) from None
    except (ValueError, IndexError):
        raise SuiteError(
            "", f"the suite's process ended without a report (status {done.returncode})"
        ) from None
    if error := report.get("error"):
        raise SuiteError(**error)
    return report
