"""The plan of an attempt for its driver, and the messages between driver, ranks and worker."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

LAST_SECONDS = 10.0
"""Time from the end of one rank until the remaining ones are killed."""
SILENCE_SECONDS = 15.0
"""A driver considers a rank lost, and a rank its driver, after this time without an answer or a call."""
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
    """Number of processes that only sample, each with its own GPU like a rank."""
    hosts: int
    """Number of hosts to divide ranks and samplers among; 0: as few as possible."""
    resource: Literal["GPU", "CPU", "rank"]
    """The resource that Ray counts, one for each rank and sampler; `rank` exists only in private clusters."""
    may_grow: bool
    """Whether the cluster may get more hosts than it has."""
    folder: Path
    """The worker's run directory, which receives the events."""
    first_sequence: int
    """Number of the first event."""
    settings: Mapping[str, Any]
    """Settings that the hosts do not take from their own environment."""
    address: str | None
    """Address of the Ray cluster; None: a private one on this machine."""
    gpus: tuple[str, ...]
    """GPUs of this machine that are reserved for a private cluster: the ranks', then the samplers'."""

    @property
    def num_gpus(self) -> int:
        return self.num_ranks + self.num_samplers


@dataclass(frozen=True)
class Call:
    """A request to the driver, which answers with one or more replies."""

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Reply:
    result: Any = None
    error: Exception | None = None
    is_last: bool = True
    """False: the call is still running, and another reply follows."""


@dataclass(frozen=True)
class Status:
    """State of a run."""

    exit_code: int | None = None
    """Exit status of all ranks together, negative for a signal; None while one of them runs."""
    loss: str | None = None
    """Which rank was lost, if that ended the run."""
    log_tail: tuple[str, ...] = ()


class ClusterLost(Exception):
    """The cluster cannot run the attempt now; the message says why."""
