"""Untrusted Python in a sandbox: no network, no host files, bounded in time, memory, processes and output.

If `self_test()` shows that the sandbox does not contain an attack, nothing runs (`SandboxUnavailable`) unless
the operator allows it (`unsafe.py`). It needs Linux with bubblewrap and only the standard library; `monty.py`
runs graders without bubblewrap.
"""

from grpo_engine.sandbox.capability import Capability, self_test, untrusted_interpreter
from grpo_engine.sandbox.launch import SandboxUnavailable
from grpo_engine.sandbox.process import Limits, Outcome
from grpo_engine.sandbox.server import PythonServer

__all__ = [
    "Capability",
    "Limits",
    "Outcome",
    "PythonServer",
    "SandboxUnavailable",
    "self_test",
    "untrusted_interpreter",
]
