"""Reserves this host's GPUs for attempts, so that several jobs run side by side, each on its own GPUs.

Each GPU has a lock file in GRPO_HOME, which the slots and workers of a host share. The kernel releases the
locks of a process that dies. GPUs that are declared on a machine without any (GRPO_GPUS on a CPU) are
reserved the same way.
Boundary: which GPUs are free. `gpu_check.py` tries whether they work.
"""

import fcntl
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from grpo_engine.process.gpus import VISIBLE_DEVICES, count_visible_gpus, visible_gpus
from service.settings import Settings

CHOICE = "choice"
"""Name of the lock that is held from the search for free GPUs until a claimed job's GPUs are chosen."""


@dataclass(frozen=True)
class HostGpus:
    """The GPUs that this worker may give to jobs."""

    folder: Path
    list_names: Callable[[], tuple[str, ...]]
    are_real: bool
    """Whether they are this host's GPUs. False: declared GPUs, for which ranks run on the CPU, or those of a
    cluster, which Ray assigns."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        are_real = settings.runtime.device != "cpu" and count_visible_gpus(os.environ) > 0
        found = visible_gpus(os.environ) if are_real else [f"declared-{n}" for n in range(settings.gpus)]
        names = tuple(found[: settings.gpus])
        return cls(settings.home / "gpus", lambda: names, are_real)

    @property
    def names(self) -> tuple[str, ...]:
        return self.list_names()

    @contextmanager
    def reserve(self) -> Iterator["Reservation"]:
        """Reserve all GPUs that are free now; `keep` frees those that the claimed job does not need."""
        reservation = Reservation(self.are_real)
        try:
            if self.names:
                reservation.choice = self._lock(CHOICE)
            for name in self.names:
                with suppress(BlockingIOError):
                    reservation.locks[name] = self._lock(name, fcntl.LOCK_NB)
            yield reservation
        finally:
            reservation.keep(())

    def _lock(self, name: str, mode: int = 0) -> int:
        """Descriptor of the locked file. Raises BlockingIOError if LOCK_NB is given and it is locked."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name.replace('/', '_')}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | mode)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor


@dataclass
class Reservation:
    """GPUs that no other attempt of this host uses."""

    are_real: bool = False
    locks: dict[str, int] = field(default_factory=dict)
    """Name of each reserved GPU → descriptor of its locked file."""
    choice: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.locks)

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which an engine sees only these GPUs."""
        return {VISIBLE_DEVICES: ",".join(self.locks)} if self.are_real else {}

    def keep(self, names: Collection[str]) -> None:
        """Free the other GPUs, and allow the next claim to choose."""
        for name in self.locks.keys() - names:
            os.close(self.locks.pop(name))
        if self.choice is not None:
            os.close(self.choice)
            self.choice = None
