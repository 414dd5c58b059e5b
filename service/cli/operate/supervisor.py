"""Child processes that are started again when they die, and that die with their parent.

Boundary: knows commands, signals and time; nothing of the service.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from grpo_engine.process.parent_death import dies_with_this_process

FIRST_BACKOFF_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A child that lived so long is started again without the delay of its earlier deaths."""


class Child:
    """One process under a name. It has a session of its own: the terminal's Ctrl-C does not reach it."""

    def __init__(self, name: str, command: Sequence[str], *, orphan_signal: signal.Signals) -> None:
        self.name = name
        self.command = list(command)
        self.orphan_signal = orphan_signal
        """What the kernel sends it when the parent dies (Linux)."""
        self.process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._restart_at = 0.0
        self._backoff_seconds = FIRST_BACKOFF_SECONDS

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        self._started_at = time.monotonic()
        # standard output is the command's own: what a child says goes beside it
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
            start_new_session=True,
            preexec_fn=dies_with_this_process(self.orphan_signal),
        )

    def tend(self, tell: Callable[[str], None]) -> None:
        """Starts the process again where it died, after a delay that doubles with each early death."""
        if self.process is None or self.alive:
            return
        now = time.monotonic()
        if not self._restart_at:
            if now - self._started_at > STEADY_SECONDS:
                self._backoff_seconds = FIRST_BACKOFF_SECONDS
            self._restart_at = now + self._backoff_seconds
            tell(f"{self.name} ended with {self.process.returncode}; again in {self._backoff_seconds:g} s")
            self._backoff_seconds = min(2 * self._backoff_seconds, MAX_BACKOFF_SECONDS)
        elif now >= self._restart_at:
            self._restart_at = 0.0
            self.start()

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.alive:
            self.process.send_signal(number)

    def kill(self) -> None:
        """Ends the process at once and collects it."""
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()
