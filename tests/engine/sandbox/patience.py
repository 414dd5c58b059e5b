"""Time limits that a busy machine does not exceed, for the calls that are to end in time."""

from collections.abc import Callable
from typing import Any

import pytest

from grpo_engine.sandbox import Outcome, PythonServer

PATIENCE = 60.0
"""Time limit in seconds of calls that end by themselves; only a defect makes one of them reach it."""


def be_patient(patch: pytest.MonkeyPatch, hangs: Callable[..., bool] = lambda *_args: False) -> None:
    """Give calls in this process PATIENCE; those for whose arguments `hangs` is true keep their limit."""
    request = PythonServer.request

    def patient(server: PythonServer, timeout: float, **fields: Any) -> Outcome:
        return request(server, timeout if hangs(*fields.get("args", ())) else PATIENCE, **fields)

    patch.setattr(PythonServer, "request", patient)
