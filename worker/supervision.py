"""Supervises a worker's helpers: each one runs in a thread and is restarted when it ends.

A helper is a callable that runs until `stopping` is set. A helper with a process of its own is
`run_process`. Boundary: threads, processes and time; what a helper does is its own module's business.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Thread
from time import monotonic
from typing import Protocol

import structlog

from grpo_engine.process.parent_death import bound_command

logger = structlog.get_logger()

FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 30.0
STEADY_SECONDS = 60.0
"""A helper that ran for this long is restarted after the first backoff again."""
POLL_SECONDS = 0.5
STOP_SECONDS = 10.0
"""Time for a helper to end once it has been asked to."""


class Flag(Protocol):
    """What `threading.Event` and a flag shared between processes have in common."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def wait(self, timeout: float) -> bool: ...


Helper = Callable[[Flag], None]


class HelperEnded(Exception):
    """A helper's process ended although nothing asked it to."""


def start_helpers(helpers: Mapping[str, Helper], stopping: Flag) -> list[Thread]:
    """Start a supervising thread per helper. They end soon after `stopping` is set."""
    threads = [
        Thread(target=_supervise, args=(name, helper, stopping), name=name, daemon=True)
        for name, helper in helpers.items()
    ]
    for thread in threads:
        thread.start()
    return threads


def join_helpers(threads: Sequence[Thread], seconds: float = STOP_SECONDS) -> None:
    """Wait until all have ended, for at most `seconds` in total."""
    deadline = monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))


@contextmanager
def supervised(helpers: Mapping[str, Helper], stopping: Flag) -> Iterator[None]:
    """Run the helpers beside the block. The block ends when `stopping` is set; then they are joined."""
    threads = start_helpers(helpers, stopping)
    yield
    join_helpers(threads)


def run_process(arguments: Sequence[str], stopping: Flag) -> None:
    """Run `python -m ARGUMENTS` until `stopping` is set. Raises HelperEnded, OSError.

    The kernel kills the process when this thread or the whole worker dies. In a session of its own it does
    not receive the terminal's Ctrl-C.
    """
    process = subprocess.Popen(bound_command([sys.executable, "-m", *arguments]), start_new_session=True)
    while process.poll() is None and not stopping.wait(POLL_SECONDS):
        pass
    if process.returncode is not None:
        raise HelperEnded(f"exit code {process.returncode}")
    end_process(process, STOP_SECONDS)


def end_process(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """SIGTERM, and SIGKILL after the grace period."""
    process.terminate()
    try:
        process.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _supervise(name: str, helper: Helper, stopping: Flag) -> None:
    backoff_seconds = FIRST_BACKOFF_SECONDS
    while not stopping.is_set():
        started_at = monotonic()
        try:
            helper(stopping)
            if not stopping.is_set():
                raise HelperEnded("it returned")
        except (Exception, SystemExit):
            if monotonic() - started_at >= STEADY_SECONDS:
                backoff_seconds = FIRST_BACKOFF_SECONDS
            logger.exception("helper ended", helper=name, restart_in_seconds=backoff_seconds)
            stopping.wait(backoff_seconds)
            backoff_seconds = min(2 * backoff_seconds, MAX_BACKOFF_SECONDS)
