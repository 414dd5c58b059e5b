"""Named points at which a process can be made to fail, for tests of recovery.

    GRPO_FAULT="checkpoint.sealed:kill"              the process kills itself there
    GRPO_FAULT="lease.renewing:sleep=3, job.claimed:raise@2"

`kill` is SIGKILL, `raise` an `InjectedFault` (`raise=ENOSPC` that OSError), `hang` never returns, `sleep=3`
continues after 3 seconds; `@2` means the second time only. With `GRPO_FAULT_MARKS=FOLDER` each fault happens
once across all processes; just before, it leaves an empty file named after its point in that folder.

Boundary: the standard library only. The variable is read at import; without it a point does nothing.
"""

import errno
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

_ENGINE = """engine.loaded step.trained checkpoint.weights_written checkpoint.sealed checkpoint.renamed
    training.finished export.saved"""
_WORKER = """job.claimed job.prepared engine.spawned events.recorded checkpoint.uploaded checkpoint.published
    results.uploaded export.uploaded job.finished job.released lease.renewing lease.renewed"""
_SWEEPER = "sweep.committed sweep.wakeups_sent webhook.sent"
_SERVICE = """job.checked job.inserted job.committed job.wakeup_sent job.deleted upload.stored
    upload.committed stream.read storage.put"""
POINTS = frozenset(f"{_ENGINE} {_WORKER} {_SWEEPER} {_SERVICE}".split())
_FAULT = re.compile(
    r"(?P<point>[a-z_.]+):(?P<action>kill|hang|raise|raise=E[A-Z0-9]+|sleep=\d+(\.\d+)?)(@(?P<nth>[1-9]\d*))?"
)
HANG_SECONDS = 3600.0


class InjectedFault(Exception):
    """The exception that the action `raise` raises at a fault point."""


class Fault(NamedTuple):
    """What happens at one point."""

    action: str
    value: str | None
    """Seconds to sleep, or the name of an error number."""
    nth: int | None
    """Which passage of the point fails, from 1; None: every passage."""


def parse_faults(text: str) -> dict[str, Fault]:
    """Point → fault, from the value of `GRPO_FAULT`. Raises ValueError."""
    faults = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        found = _FAULT.fullmatch(word)
        if found is None or found["point"] not in POINTS:
            raise ValueError(
                f"GRPO_FAULT: {word!r} is not POINT:ACTION[@COUNT]. Actions: kill, raise, raise=ENOSPC, "
                f"hang, sleep=SECONDS. Points: {', '.join(sorted(POINTS))}"
            )
        action, _, value = found["action"].partition("=")
        if action == "raise" and value and not hasattr(errno, value):
            raise ValueError(f"GRPO_FAULT: unknown error number {value} in {word!r}")
        nth = int(found["nth"]) if found["nth"] else None
        faults[found["point"]] = Fault(action, value or None, nth)
    return faults


class Faults:
    """The faults of one process."""

    def __init__(self, faults: Mapping[str, Fault], marks: Path | None) -> None:
        self.faults, self.marks = faults, marks
        self._passed: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, point: str) -> None:
        """Fail at this point if a fault is due."""
        fault = self.faults.get(point)
        if fault is not None and self._is_due(point, fault) and self._mark(point):
            _act(point, fault)

    def _is_due(self, point: str, fault: Fault) -> bool:
        with self._lock:
            self._passed[point] = self._passed.get(point, 0) + 1
            return fault.nth in (None, self._passed[point])

    def _mark(self, point: str) -> bool:
        """Whether no process has failed at this point before."""
        if self.marks is None:
            return True
        try:
            (self.marks / point).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def _act(point: str, fault: Fault) -> None:
    match fault.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            time.sleep(HANG_SECONDS)
        case "sleep":
            time.sleep(float(fault.value or 0))
        case _ if fault.value is not None:
            number = int(getattr(errno, fault.value))
            raise OSError(number, os.strerror(number), point)
        case _:
            raise InjectedFault(point)


def _from_environment() -> Faults:
    """This process's faults. Raises ValueError."""
    if faults := parse_faults(os.environ.get("GRPO_FAULT", "")):
        print(f"GRPO_FAULT: this process will fail at {', '.join(sorted(faults))}", file=sys.stderr)
    marks = os.environ.get("GRPO_FAULT_MARKS")
    return Faults(faults, Path(marks) if marks else None)


fault_point = _from_environment()
