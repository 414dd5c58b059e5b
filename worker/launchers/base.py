"""The interface of a running engine, wherever it runs.

`Place`: the machine, or the GPUs of a cluster, that is reserved for an attempt. `Run`: its engine, one
process or several ranks. `local_place.py` implements them for this machine, `worker/cluster/` for Ray.
"""

from pathlib import Path
from typing import Protocol

from worker.launchers.run_files import RunFiles

CONFIG = "config.json"
"""Name of the engine's configuration in its run directory."""
EVENTS = "events.jsonl"
"""Name of the engine's events, which are also copied to the worker's own run directory."""


def engine_arguments(folder: Path) -> list[str]:
    """Arguments of an engine with this run directory."""
    return ["--config", str(folder / CONFIG), "--run-dir", str(folder)]


class Run(Protocol):
    """A started engine. All its events are in the worker's run directory before `poll` reports its end."""

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""

    def wait(self, seconds: float) -> int | None:
        """The exit status as soon as the engine has ended; None after `seconds`."""

    def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM (write a checkpoint, end), and SIGKILL after the grace period. May be called twice."""

    def kill(self) -> None:
        """Send SIGKILL to all the engine's processes, without waiting for them."""

    def close(self) -> None:
        """Kill the engine and wait until none of its reachable processes is left."""

    def log_tail(self, num_lines: int = 20) -> tuple[str, ...]:
        """The last lines that the engine printed."""

    def loss(self) -> str | None:
        """Which host or process was lost, if that ended the run."""


class Place(Protocol):
    """Where one attempt runs."""

    @property
    def files(self) -> RunFiles:
        """The run directory. Available once `waiting_for` returns None."""

    def waiting_for(self) -> str | None:
        """The missing resources, such as "2 of 4 GPUs"; None: the engine can start."""

    def start(self) -> Run:
        """Start the engine with the prepared run directory."""
