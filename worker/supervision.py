"""Supervises a worker's helpers. Each helper runs in a thread and is restarted when it ends.

A helper is a callable that runs until `stopping` is set. Most use `run_rounds`; a helper with its own process
uses `run_process`. Boundary: threads, processes and time; a helper's work is in its own module.
"""

import os
import select
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Thread
from time import monotonic
from typing import Protocol

import structlog
from sqlalchemy.exc import SQLAlchemyError

from grpo_engine.process.parent_death import bound_command
from service.ops.helper_heartbeats import Heartbeat
from service.platform.db import reason_of

logger = structlog.get_logger()

FIRST_BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 0.5, 30.0
STEADY_SECONDS = 60.0
"""After a helper has run for this long, its next restart has the first, shortest backoff."""
RETRY_SECONDS = 1.0
"""Minimum pause after a round in which the database was unavailable."""
POLL_SECONDS = 0.5
STOP_SECONDS = 10.0
"""Time for all helpers to end after `stopping` is set."""


class StopFlag:
    """A flag for signal handlers and forked children. Unlike `threading.Event`, it has no lock.

    A handler would wait forever for a lock that its own thread holds, and a killed child never releases one.
    To set the flag, a byte is written to a pipe; it is never read, so the pipe stays readable.
    """

    def __init__(self) -> None:
        self._reads, self._writes = os.pipe()
        for end in (self._reads, self._writes):
            weakref.finalize(self, os.close, end)

    def set(self) -> None:
        if not self.is_set():
            os.write(self._writes, b"1")

    def is_set(self) -> bool:
        return self.wait(0.0)

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is set, at the latest after `timeout` seconds; None: wait until it is."""
        pipe = select.poll()
        pipe.register(self._reads, select.POLLIN)
        return bool(pipe.poll(None if timeout is None else 1000 * timeout))


class Flag(Protocol):
    """The interface of `StopFlag` and of `threading.Event`."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def wait(self, timeout: float) -> bool: ...


Helper = Callable[[Flag], None]


class HelperEnded(Exception):
    """A helper ended before `stopping` was set."""


def stop_flag() -> StopFlag:
    """A flag that SIGTERM and SIGINT set."""
    stopping = StopFlag()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_signal: stopping.set())
    return stopping


@contextmanager
def supervised(helpers: Mapping[str, Helper], stopping: Flag) -> Iterator[None]:
    """Run the helpers beside the block, which must end when `stopping` is set. Then wait for the helpers."""
    threads = [
        Thread(target=_supervise, args=(name, helper, stopping), name=name, daemon=True)
        for name, helper in helpers.items()
    ]
    for thread in threads:
        thread.start()
    yield
    deadline = monotonic() + STOP_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - monotonic()))


def run_rounds(
    stopping: Flag, heartbeat: Heartbeat, run_round: Callable[[], bool | None], pause_seconds: float
) -> None:
    """Repeat a round until `stopping` is set, without a pause after a round that returns True.

    An unavailable database is retried; any other error ends the helper.
    """
    while not stopping.is_set():
        try:
            is_busy = run_round()
            heartbeat.beat()
            pause = 0.0 if is_busy else pause_seconds
        except SQLAlchemyError as error:
            logger.warning("database unavailable", helper=heartbeat.helper, error=reason_of(error))
            pause = max(pause_seconds, RETRY_SECONDS)
        stopping.wait(pause)
    heartbeat.leave()


def run_process(arguments: Sequence[str], stopping: Flag) -> None:
    """Run `python -m ARGUMENTS` until `stopping` is set. Raises HelperEnded, OSError.

    The kernel kills the process when this thread or the whole worker dies. It has its own session, so that
    Ctrl-C in a terminal does not reach it.
    """
    process = subprocess.Popen(bound_command([sys.executable, "-m", *arguments]), start_new_session=True)
    while process.poll() is None and not stopping.wait(POLL_SECONDS):
        pass
    if process.returncode is not None:
        raise HelperEnded(f"exit code {process.returncode}")
    end_process(process, STOP_SECONDS)


def end_process(process: subprocess.Popen[bytes], grace_seconds: float) -> None:
    """Send SIGTERM, and SIGKILL after the grace period."""
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
