"""The engine as a child: started in its own session, stopped, killed, watched. It dies with the worker.

Boundary: processes only; the meaning of its end is the runner's business. Only what was started here is
ever signalled: the process group is killed before its leader is reaped, so the number cannot be another's.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from worker import launch

MAX_LOG_BYTES = 4 * 2**20
"""Of engine.log; when it is full it becomes engine.log.1 and a new one starts."""
PROXIES = {"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"}
CERTIFICATES = {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
ALLOWED = {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH"}
OUTSIDE = {"GRPO_ENDPOINTS", "GRPO_ALLOWED_HOSTS", "GRPO_ENDPOINT_SECRET"}
"""What judges, grader endpoints and tools are asked with: the operator's list and key for signatures."""
ALLOWED |= PROXIES | {name.lower() for name in PROXIES} | CERTIFICATES | OUTSIDE
ALLOWED_PREFIXES = tuple(
    f"{name}_"
    for name in "CUDA NVIDIA NCCL OMP MKL HF TOKENIZERS TORCH PYTORCH VLLM".split()  # noqa: SIM905
)


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the engine may see: an allow-list, so no API key or database URL of ours."""
    return {
        name: value
        for name, value in environment.items()
        if name in ALLOWED or name.startswith(ALLOWED_PREFIXES)
    }


class EngineProcess:
    """One running engine. Start it in the worker's main thread: the kernel ties the death signal to it."""

    def __init__(self, command: list[str], run_dir: Path) -> None:
        self.log_path = run_dir / "engine.log"
        self._lock = threading.Lock()
        self._killer: threading.Timer | None = None
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(launch.__file__)), str(os.getpid()), *command],
            cwd=run_dir,
            env=engine_environment(os.environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._pump = threading.Thread(
            target=_copy_log, args=(self._process.stdout, self.log_path), name="engine-log", daemon=True
        )
        self._pump.start()

    @property
    def pid(self) -> int:
        """Process id, and id of its session and process group."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs. What it left behind is killed first."""
        with self._lock:
            if self._process.returncode is None and self._has_exited():
                self._signal_group(signal.SIGKILL)
                self._process.wait()
        if self._process.returncode is not None and self._killer is not None:
            self._killer.cancel()
        return self._process.returncode

    def wait(self, seconds: float) -> int | None:
        """Its exit code as soon as it has one; None after `seconds`."""
        waiter = threading.Event()
        for _ in range(max(1, round(seconds / 0.01))):
            if (code := self.poll()) is not None:
                return code
            waiter.wait(0.01)
        return self.poll()

    def stop(self, grace_seconds: float) -> None:
        """Ask for a checkpoint and an end (SIGTERM); SIGKILL after the grace. Asking twice is harmless."""
        with self._lock:
            if self._killer is not None or self._process.returncode is not None:
                return
            # Not Popen.send_signal: it reaps a leader that has ended, and then the group has no number.
            os.kill(self.pid, signal.SIGTERM)
            self._killer = threading.Timer(grace_seconds, self.kill)
            self._killer.daemon = True
            self._killer.start()

    def kill(self) -> None:
        """SIGKILL to all that it started in its session."""
        with self._lock:
            if self._process.returncode is None:
                self._signal_group(signal.SIGKILL)

    def close(self) -> None:
        """Whatever happened: nothing of it is left when this returns."""
        self.kill()
        while self.poll() is None:
            self.wait(0.1)
        self._pump.join(timeout=1)

    def log_tail(self, num_lines: int = 20) -> tuple[str, ...]:
        """The last lines it printed; all of them are there once it has ended."""
        if self._process.returncode is not None:
            self._pump.join(timeout=5)
        lines = tail(self.log_path, num_lines)
        if len(lines) < num_lines:  # the file has just been rotated
            lines = (*tail(self.log_path.with_suffix(".log.1"), num_lines - len(lines)), *lines)
        return lines

    def _has_exited(self) -> bool:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def _signal_group(self, number: int) -> None:
        os.killpg(self.pid, number)


def tail(path: Path, num_lines: int, max_bytes: int = 16_384) -> tuple[str, ...]:
    """The last lines of a text file; none where it does not exist."""
    if not path.exists():
        return ()
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - max_bytes))
        return tuple(file.read().decode("utf-8", "replace").splitlines()[-num_lines:])


def _copy_log(source: IO[bytes], path: Path) -> None:
    """Pipe → file of bounded size, until the engine's side is closed."""
    with source:
        while piece := os.read(source.fileno(), 65_536):
            with suppress(OSError):  # on a full disk lines are lost, never the engine that prints them
                _append(path, piece)


def _append(path: Path, piece: bytes) -> None:
    with path.open("ab", buffering=0) as log:
        log.write(piece)
        is_full = log.tell() >= MAX_LOG_BYTES
    if is_full:
        path.replace(path.with_suffix(".log.1"))
