"""The worker's side of an attempt on Ray: its driver process and the started run.

    with cluster_place(plan) as place:      the ranks end with the block

Boundary: no Ray in this process. If a driver ends, its ranks have ended too.
"""

import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from worker.cluster.files import ClusterFiles
from worker.cluster.plan import LOST, Call, ClusterLost, Plan, Reply, Status
from worker.launchers.local import EngineProcess
from worker.launchers.run_directory import clean_up, run_directory
from worker.launchers.run_files import RunFiles

DRIVER = "worker.cluster.driver"
PREFIX = "grpo-ray-"
"""Prefix of the names of temporary folders."""
POLL_SECONDS = 0.05
ANSWER_SECONDS = 120.0
"""Maximum time until the driver has joined the cluster, and then until it answers a call or reports that the
call is still running."""
LEAVE_SECONDS = 20.0
"""Maximum time for the driver to end the ranks and delete their directories."""
KEPT_FROM_DRIVER = ("GRPO_DATABASE_URL", "GRPO_BROKER_URL", "GRPO_MODE")


@contextmanager
def cluster_place(plan: Plan) -> Iterator["ClusterPlace"]:
    """Yield the plan's part of the cluster, which may not be available yet."""
    mine, other = Pipe()
    with _short_lived_folder() as temporary, mine:
        with other:
            command = [sys.executable, "-P", "-m", DRIVER, str(other.fileno())]
            environment = driver_environment(is_private=plan.address is None)
            process = EngineProcess(command, plan.folder, environment, [other.fileno()])
        place = ClusterPlace(process, mine)
        try:
            mine.send((plan, temporary))
            yield place
            place.leave()
        finally:
            process.close()


@contextmanager
def _short_lived_folder() -> Iterator[Path]:
    """A locked folder with a short path, for Ray's sockets. Removes those of killed workers first."""
    clean_up(Path(tempfile.gettempdir()), f"{PREFIX}*")
    with (
        tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as outer,
        run_directory(Path(outer) / "0") as folder,
    ):
        yield folder


def driver_environment(*, is_private: bool) -> dict[str, str]:
    """This worker's environment without its secrets; a private cluster has its own token."""
    environment = {name: value for name, value in os.environ.items() if name not in KEPT_FROM_DRIVER}
    if is_private:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        environment |= token | {"RAY_USAGE_STATS_ENABLED": "0"}
    return environment


class ClusterPlace:
    """An attempt's driver. Must be used in one thread, except for the run's `kill`."""

    def __init__(self, process: EngineProcess, connection: Connection) -> None:
        self._process, self._connection = process, connection
        self._has_joined = False
        self._created_at = time.monotonic()

    @property
    def files(self) -> RunFiles:
        return ClusterFiles(self.call)

    def waiting_for(self) -> str | None:
        """The missing resources, or None. Raises ClusterLost."""
        if not self._has_joined:
            if not self._connection.poll() and self._process.poll() is None:
                if time.monotonic() - self._created_at < ANSWER_SECONDS:
                    return "the Ray cluster"
                self._process.kill()
            self._receive()
            self._has_joined = True
        missing: str | None = self.call("waiting_for")
        return missing

    def start(self) -> "ClusterRun":
        self.call("start")
        return ClusterRun(self, self._process)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call the driver. Raises ClusterLost, or the error that the operation raised on its host."""
        with self._lost_if_closed():
            self._connection.send(Call(method, arguments))
        return self._receive()

    def leave(self) -> None:
        """Free the reserved part, if the driver still answers."""
        with suppress(ClusterLost), self._lost_if_closed():
            if self._has_joined:
                self._connection.send(Call("leave"))
                if self._connection.poll(LEAVE_SECONDS):
                    self._receive()

    def _receive(self) -> Any:
        reply = Reply(is_last=False)
        with self._lost_if_closed():
            while not reply.is_last:
                if not self._connection.poll(ANSWER_SECONDS):
                    self._process.kill()  # a late answer would be taken for that to the next call
                reply = self._connection.recv()
        if reply.error is not None:
            raise reply.error
        return reply.result

    @contextmanager
    def _lost_if_closed(self) -> Iterator[None]:
        try:
            yield
        except (EOFError, OSError) as error:
            last = " ".join(self._process.log_tail(1))[:300]
            raise ClusterLost(f"The connection to the Ray cluster was lost. {last}".strip()) from error


@dataclass(frozen=True)
class ClusterRun:
    """All ranks of a started run."""

    place: ClusterPlace
    driver: EngineProcess

    def poll(self) -> int | None:
        return self._status().exit_code

    def wait(self, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return code

    def stop(self, grace_seconds: float) -> None:
        with suppress(ClusterLost):
            self.place.call("stop", grace_seconds)

    def kill(self) -> None:
        """Kill the driver, and with it all actors and engines. May be called in any thread."""
        self.driver.kill()

    def close(self) -> None:
        """Kill the engines and wait for them; the run directories remain."""
        with suppress(ClusterLost):
            self.place.call("kill")

    def log_tail(self, num_lines: int = 20) -> tuple[str, ...]:
        return self._status().log_tail[-num_lines:]

    def loss(self) -> str | None:
        return self._status().loss

    def _status(self) -> Status:
        try:
            status: Status = self.place.call("status")
        except ClusterLost as error:
            return Status(LOST, str(error))
        return status
