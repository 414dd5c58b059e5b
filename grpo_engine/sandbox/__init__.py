"""Untrusted Python in a sandbox: no network, no host files, bounded in time, memory, processes and output.

`self_test()` attacks the sandbox and says whether it holds; without that nothing runs (`SandboxUnavailable`)
but where an operator insists (`unsafe.py`).
`PythonServer` runs one program many times, `run_python` a text once. Boundary: Linux with bubblewrap, the
standard library only; `monty.py` is another interpreter for graders where bubblewrap is not to be had.
"""

from __future__ import annotations

from grpo_engine.sandbox.launch import SandboxUnavailable
from grpo_engine.sandbox.probe import Capability, self_test, untrusted_interpreter
from grpo_engine.sandbox.process import Limits, Outcome
from grpo_engine.sandbox.server import PythonServer, RunResult, run_python

__all__ = [
    "Capability",
    "Limits",
    "Outcome",
    "PythonServer",
    "RunResult",
    "SandboxUnavailable",
    "run_python",
    "self_test",
    "untrusted_interpreter",
]
