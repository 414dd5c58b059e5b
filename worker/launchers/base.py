"""The interface of a running engine, wherever it runs.

`Place`: the machine, or the GPUs of a cluster, that one attempt has. `Run`: its engine, one process or
several ranks. `local_place.py` implements them on this machine, `worker/cluster/` on Ray.
"""

from pathlib import Path
from typing import Protocol

from worker.launchers.run_files import RunFiles

CONFIG = "config.json"
"""The engine's configuration in its run directory."""
EVENTS = "events.jsonl"
"""The engine's events; a copy of them is in the worker's own run directory."""


def engine_arguments(folder: Path) -> list[str]:
    """Arguments of an engine with this run directory."""
    return ["--config", str(folder / CONFIG), "--run-dir", str(folder)]


class Run(Protocol):
    """A started engine. Its events are in the worker's run directory before `poll` says that it has ended."""

    def poll(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""

    def wait(self, seconds: float) -> int | None:
        """The exit status as soon as the engine has ended; None after `seconds`."""

    def stop(self, grace_seconds: float) -> None:
        """SIGTERM: write a checkpoint and end; SIGKILL after the grace period. Can be called twice."""

    def kill(self) -> None:
        """SIGKILL to all its processes, without waiting for them."""

    def close(self) -> None:
        """Kill it and wait until none of its processes is left, as far as they can be reached."""

    def log_tail(self, num_lines: int = 20) -> tuple[str, ...]:
        """The last lines that it printed."""

    def loss(self) -> str | None:
        """Which host or process was lost, if that ended the run."""


class Place(Protocol):
    """Where one attempt runs."""

    @property
    def files(self) -> RunFiles:
        """The run directory; call it when nothing is waited for."""

    def waiting_for(self) -> str | None:
        """What is missing, such as "2 of 4 GPUs"; None: the engine can start."""

    def start(self) -> Run:
        """Start the engine with the prepared run directory."""
