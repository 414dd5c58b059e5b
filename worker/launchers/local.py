"""The engine as a child process in its own session, which dies with the worker.

Boundary: starting, watching, stopping and killing; `attempt/conclude.py` interprets the exit. The group is
killed before its leader is reaped, because until then no other process can have its number.
"""

import json
import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from grpo_engine.process.parent_death import bound_command

MAX_LOG_BYTES = 8 * 2**20
"""Maximum size of engine.log; a full one is renamed to engine.log.1. The service stores as much per job."""
MAX_KEPT_BYTES = 65_536
"""Maximum output that is kept of an engine without a run directory."""
LOG_FILE = "engine.log"
POLL_SECONDS = 0.01
PROXIES = {"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"}
CERTIFICATES = {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"}
ALLOWED = {"PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH"}
OUTSIDE = {"GRPO_ENDPOINTS", "GRPO_ALLOWED_HOSTS", "GRPO_ENDPOINT_SECRET"}
"""The operator's endpoints, allow-list and signing key, for judges, grader endpoints and tools."""
FAULTS = {"GRPO_FAULT", "GRPO_FAULT_MARKS"}
ALLOWED |= PROXIES | {name.lower() for name in PROXIES} | CERTIFICATES | OUTSIDE | FAULTS
LIBRARIES = "ATEN CUDA NVIDIA NCCL OMP GOMP MKL ONEDNN HF TOKENIZERS TORCH PYTORCH VLLM"
ALLOWED_PREFIXES = tuple(f"{name}_" for name in LIBRARIES.split())


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that an engine may see, without API keys and database URL of the service."""
    visible = {
        name: value
        for name, value in environment.items()
        if name in ALLOWED or name.startswith(ALLOWED_PREFIXES)
    }
    if endpoints := visible.get("GRPO_ENDPOINTS"):
        # engines run in other folders
        visible["GRPO_ENDPOINTS"] = os.path.abspath(endpoints)
    return visible


class EngineProcess:
    """One engine. The thread that starts it must outlive it; the kernel kills it when the thread ends.

    Without a run directory it waits for `hand_over`, or it serves a model (`serving/model_process.py`).
    `environment`: by default, the allowed variables of this worker. `descriptors` stay open in the engine.
    `log_name`: file of its output in the run directory.
    """

    def __init__(
        self,
        command: list[str],
        run_dir: Path | None,
        environment: Mapping[str, str] | None = None,
        descriptors: Collection[int] = (),
        log_name: str = LOG_FILE,
    ) -> None:
        self._lock = threading.Lock()
        self._killer: threading.Timer | None = None
        self._process = subprocess.Popen(
            bound_command(command),
            cwd=run_dir or "/",
            env=engine_environment(os.environ) if environment is None else environment,
            stdin=subprocess.DEVNULL if run_dir else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=descriptors,
        )
        assert self._process.stdout is not None
        self._log = EngineLog(self._process.stdout, run_dir and run_dir / log_name)

    @property
    def pid(self) -> int:
        """Process id, and id of its session and process group."""
        return self._process.pid

    @property
    def stdin(self) -> IO[bytes]:
        """Standard input of an engine without a run directory."""
        assert self._process.stdin is not None
        return self._process.stdin

    def hand_over(self, arguments: Sequence[str], run_dir: Path, environment: Mapping[str, str]) -> bool:
        """Send a warm engine its job, with additional variables. False: the engine has ended."""
        job = {"directory": str(run_dir), "arguments": list(arguments), "environment": dict(environment)}
        line = json.dumps(job)
        try:
            with self.stdin as stdin:
                stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            return False
        self._log.move_to(run_dir)
        return True

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs. Its remaining children are killed first."""
        with self._lock:
            if self._process.returncode is None and self._has_exited():
                os.killpg(self.pid, signal.SIGKILL)
                self._process.wait()
        if self._process.returncode is not None and self._killer is not None:
            self._killer.cancel()
        return self._process.returncode

    def wait(self, seconds: float) -> int | None:
        """The exit code as soon as the engine has ended; None after `seconds`."""
        deadline, pause = time.monotonic() + seconds, threading.Event()
        while (code := self.poll()) is None and time.monotonic() < deadline:
            pause.wait(POLL_SECONDS)  # time.sleep fails under libfaketime
        return code

    def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM (write a checkpoint, end), and SIGKILL after the grace period. May be called twice."""
        with self._lock:
            if self._killer is not None or self._process.returncode is not None:
                return
            # Popen.send_signal would reap an ended leader, after which the group's number would be free.
            os.kill(self.pid, signal.SIGTERM)
            self._killer = threading.Timer(grace_seconds, self.kill)
            self._killer.daemon = True
            self._killer.start()

    def kill(self) -> None:
        """Send SIGKILL to the engine's whole process group."""
        with self._lock:
            if self._process.returncode is None:
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the engine and wait until no process of its group is left."""
        self.kill()
        self.wait(math.inf)
        self._log.join(timeout=1)
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):
                self._process.stdin.close()

    def log_tail(self, num_lines: int = 20) -> tuple[str, ...]:
        """The last lines that the engine printed; complete once it has ended."""
        if self._process.returncode is not None:
            self._log.join(timeout=5)
        return self._log.tail(num_lines)

    def loss(self) -> None:
        """None, because the engine is on the worker's machine."""

    def _has_exited(self) -> bool:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


class EngineLog:
    """An engine's output: a file of bounded size, kept in memory until there is a run directory."""

    def __init__(self, source: IO[bytes], path: Path | None) -> None:
        self._path = path
        self._kept = b""
        self._lock = threading.Lock()
        self._pump = threading.Thread(target=self._copy, args=(source,), name="engine-log", daemon=True)
        self._pump.start()

    def move_to(self, run_dir: Path) -> None:
        """Write to the job's log from now on, starting with the output so far."""
        with self._lock:
            self._path = run_dir / LOG_FILE
            self._write(self._kept)

    def join(self, timeout: float) -> None:
        """Wait until the output of an ended engine is complete."""
        self._pump.join(timeout)

    def tail(self, num_lines: int) -> tuple[str, ...]:
        """The last lines."""
        with self._lock:
            if self._path is None:
                return _last_lines(self._kept, num_lines)
        lines = tail(self._path, num_lines)
        if len(lines) < num_lines:  # the file has just been rotated
            lines = (*tail(self._path.with_suffix(".log.1"), num_lines - len(lines)), *lines)
        return lines

    def _copy(self, source: IO[bytes]) -> None:
        """Copy the pipe to the log until the engine closes it."""
        with source:
            while piece := os.read(source.fileno(), 65_536):
                with self._lock:
                    self._write(piece)

    def _write(self, piece: bytes) -> None:
        if self._path is None:
            self._kept = (self._kept + piece)[-MAX_KEPT_BYTES:]
        elif piece:
            with suppress(OSError):  # on a full disk the lines are lost, and the engine continues
                append(self._path, piece)


def tail(path: Path, num_lines: int, max_bytes: int = 16_384) -> tuple[str, ...]:
    """The last lines of a text file; none if it does not exist."""
    if not path.exists():
        return ()
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - max_bytes))
        return _last_lines(file.read(), num_lines)


def _last_lines(content: bytes, num_lines: int) -> tuple[str, ...]:
    return tuple(content.decode("utf-8", "replace").splitlines()[-num_lines:])


def append(path: Path, piece: bytes) -> None:
    """Add output to a log, and rename the file if it is full."""
    with path.open("ab", buffering=0) as log:
        log.write(piece)
        is_full = log.tell() >= MAX_LOG_BYTES
    if is_full:
        path.replace(path.with_suffix(".log.1"))
