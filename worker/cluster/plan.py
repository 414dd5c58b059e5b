"""What a driver must know of its attempt, and what driver, ranks and worker say to each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LAST_SECONDS = 10.0
"""Seconds from the end of the first rank until the remaining ones are killed."""
SILENCE_SECONDS = 15.0
"""Without an answer for this long, a rank is lost for its driver, and the driver for a rank."""
HOSTS_OWN: Mapping[str, Any] = {"mode": "embedded", "database_url": None, "broker_url": None}
"""Settings of a cluster's hosts, which use neither database nor broker."""
LOST = -9
"""Exit status of a run that lost a rank or its cluster."""


@dataclass(frozen=True)
class Plan:
    """Where and how the ranks of one attempt run."""

    job_id: str
    fence: int
    num_ranks: int
    num_samplers: int
    """Processes that only sample, each with a GPU as a rank has."""
    hosts: int
    """Number of hosts to divide ranks and samplers among; 0: as few as possible."""
    resource: Literal["GPU", "CPU", "rank"]
    """What Ray counts, one for each rank and sampler; `rank` exists in private clusters only."""
    may_grow: bool
    """Whether the cluster may get more hosts than it has."""
    folder: Path
    """The worker's run directory: receives the events."""
    first_sequence: int
    """Number of the first event."""
    settings: Mapping[str, Any]
    """Settings of the hosts that do not come from their own environment."""
    environment: Mapping[str, str]
    """More variables of the engines."""
    address: str | None
    """Of the Ray cluster; None: a private one of this machine."""
    temporary: Path
    """Folder for the files of a private cluster."""
    gpus: tuple[str, ...] = ()
    """GPUs of this machine that are reserved for a private cluster: the ranks', then the samplers'."""

    @property
    def num_gpus(self) -> int:
        return self.num_ranks + self.num_samplers


@dataclass(frozen=True)
class Call:
    """A request to the driver, which answers with a `Reply`."""

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Reply:
    result: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class Status:
    """How a run is."""

    exit_code: int | None = None
    """Of all ranks together, negative for a signal; None while one runs."""
    loss: str | None = None
    """Which rank was lost, if that ended the run."""
    log_tail: tuple[str, ...] = ()


class ClusterLost(Exception):
    """The cluster cannot run the attempt now; its text says why."""
