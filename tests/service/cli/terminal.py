"""A command in its own real terminal: reads the screen and presses keys."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager

CTRL_C = b"\x03"
COLUMNS, ROWS = 120, 40
_STYLES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """One running command and its screen, as text without styles."""

    def __init__(self, process: subprocess.Popen[bytes], master: int) -> None:
        self.process = process
        self._master = master
        self._shown = b""

    @property
    def text(self) -> str:
        return _STYLES.sub("", self._shown.decode(errors="replace")).replace("\r", "\n")

    def wait_for(self, text: str, seconds: float = 180) -> None:
        """Waits until the text is on the screen. Raises TimeoutError."""
        deadline = time.monotonic() + seconds
        while text not in self.text:
            if time.monotonic() > deadline or not self._read(1.0):
                raise TimeoutError(f"{text!r} did not appear: {self.text}")

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def end(self) -> int:
        """Reads the rest of the output and returns the exit code."""
        deadline = time.monotonic() + 180
        while self._read(5):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the command is still running: {self.text}")
        return self.process.wait(60)

    def _read(self, seconds: float) -> bool:
        """Returns False when the command has closed its terminal."""
        ready, _, _ = select.select([self._master], [], [], seconds)
        if not ready:
            return True
        try:
            piece = os.read(self._master, 65_536)
        except OSError:  # Linux, when the other end is closed
            return False
        self._shown += piece
        return bool(piece)


@contextmanager
def terminal(command: list[str], environment: dict[str, str]) -> Iterator[Terminal]:
    """Runs the command in its controlling terminal, so that Ctrl-C reaches it as from a keyboard."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _IN_TERMINAL, *command],
        env={**environment, "TERM": "xterm"},
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(master)


_IN_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Background jobs of a shell, such as the tests, ignore SIGINT, and so do their children by default."""
