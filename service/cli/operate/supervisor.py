"""Child processes that are restarted when they end, and that end with their parent.

Boundary: commands, signals and time; independent of the service.
"""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from grpo_engine.process.parent_death import dies_with_this_process

FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A child that ran for this long is restarted after the first backoff again."""


@dataclass
class Child:
    """One named process. It has its own session, so that the terminal's Ctrl-C does not reach it."""

    name: str
    command: Sequence[str]
    orphan_signal: signal.Signals | None
    """Signal that the kernel sends it when the parent dies (Linux); None: no signal."""
    reads: int = subprocess.DEVNULL
    """File descriptor of its standard input."""
    writes: int | None = None
    """File descriptor of its output and errors; None: this process's standard error."""
    process: subprocess.Popen[bytes] | None = None
    _started_at: float = 0.0
    _restart_at: float = 0.0
    _backoff_seconds: float = FIRST_BACKOFF_SECONDS

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self._started_at = time.monotonic()
        # standard output is for the command's own result
        self.process = subprocess.Popen(
            self.command,
            stdin=self.reads,
            stdout=sys.stderr.fileno() if self.writes is None else self.writes,
            stderr=self.writes,
            start_new_session=True,
            preexec_fn=dies_with_this_process(self.orphan_signal) if self.orphan_signal else None,
        )

    def restart_if_ended(self, log: Callable[[str], None]) -> None:
        """Restarts an ended process after a delay that doubles with each early end."""
        if self.process is None or self.alive:
            return
        now = time.monotonic()
        if not self._restart_at:
            if now - self._started_at > STEADY_SECONDS:
                self._backoff_seconds = FIRST_BACKOFF_SECONDS
            self._restart_at = now + self._backoff_seconds
            ended = f"{self.name} ended with {self.process.returncode}"
            log(f"{ended}; restarting in {self._backoff_seconds:g} s")
            self._backoff_seconds = min(2 * self._backoff_seconds, MAX_BACKOFF_SECONDS)
        elif now >= self._restart_at:
            self._restart_at = 0.0
            try:
                self.start()
            except OSError as error:  # out of memory or processes, or the program is being replaced
                log(f"{self.name} cannot be started: {error.strerror}")

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.alive:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Ends the process at once and waits for it."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
