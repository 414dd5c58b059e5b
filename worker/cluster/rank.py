"""One rank: an actor on the rank's host that supervises the engine process."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Pipe
from typing import Any

import ray

from grpo_engine.contract.sampling import CONNECTION
from worker.cluster.engine_actor import EngineActor
from worker.cluster.network import free_port, interface_towards
from worker.cluster.plan import Plan
from worker.cluster.relay import Relay
from worker.cluster.sampler import SamplerGroup
from worker.launchers.base import EVENTS
from worker.launchers.log_reader import LogReader

REPORT_SECONDS = 1.0
"""Maximum time that a report waits for news."""
LOOK_SECONDS = 0.05
PIECE_BYTES = 2**20
LOG_BYTES = 2**18
"""Maximum bytes of the log in one report."""


@dataclass(frozen=True)
class Location:
    """Where a rank runs."""

    node: str
    host: str
    """Address of the host in the cluster."""
    port: int
    """A port that was free; all ranks use the first rank's port."""


@dataclass(frozen=True)
class Report:
    """News of a rank since the last report."""

    piece: bytes = b""
    """The next bytes of the first rank's events."""
    exit_code: int | None = None
    failure: bytes | None = None
    """The `failed` event of a rank other than the first."""
    log_tail: tuple[str, ...] = ()
    printed: tuple[str, ...] = ()
    """New lines of the rank's log."""


def log_of(rank: int) -> str:
    """Name of the file with a rank's output, on its host and in the worker's run directory."""
    return f"rank-{rank}.log"


class Rank(EngineActor):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self._rank = 0
        self._relay: Relay | None = None
        self._log: LogReader | None = None
        self._log_read_at = 0.0

    def locate(self) -> Location:
        """Where this rank runs. The driver repeats the call until the actors of all ranks run."""
        self._last_call_at = time.monotonic()
        node, host = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        return Location(node, host, free_port())

    def enter(self, rank: int, first_rank: int) -> None:
        """Take this rank number, and use this host's run directory, which the host's first rank creates."""
        self._rank = rank
        self._use_folder(str(first_rank), is_new=first_rank == rank)

    def start(self, locations: Sequence[Location], ranks: Sequence[Any], samplers: SamplerGroup) -> None:
        """Start the engine; the other ranks are started by their actors."""
        variables = self._variables(locations)
        log_name = log_of(self._rank)
        self._log = LogReader(self._folder / log_name)
        if not samplers.actors:
            self._start_engine(self._rank, variables, log_name=log_name)
            return
        mine, other = Pipe()
        self._relay = Relay(mine, self._folder, samplers, ranks)
        with other:
            variables[CONNECTION] = str(other.fileno())
            self._start_engine(self._rank, variables, descriptors=[other.fileno()], log_name=log_name)
        self._relay.listen()

    def take_policy(self, version: int, policy: Sequence[Any]) -> None:
        """Use this object in the cluster as the policy for requests with this version."""
        if self._relay:
            self._relay.take_policy(version, policy)

    def report(self, offset: int) -> Report:
        """The news, or an empty report after `REPORT_SECONDS`. `offset`: next byte of the events."""
        deadline = time.monotonic() + REPORT_SECONDS
        while True:
            self._last_call_at = time.monotonic()
            exit_code = self._engine.poll() if self._engine else None  # before reading
            piece, printed = self._events(offset), self._printed(exit_code)
            if piece or printed:
                return Report(piece, printed=printed)
            if exit_code is not None:
                return self._last_report(exit_code)
            if time.monotonic() > deadline:
                return Report()
            time.sleep(LOOK_SECONDS)

    def keep_alive(self) -> None:
        """Note that the driver is alive, after the engine's end."""
        self._last_call_at = time.monotonic()
        time.sleep(REPORT_SECONDS)

    def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM to the engine, and SIGKILL after the grace period."""
        if self._engine:
            self._engine.stop(grace_seconds)

    def _variables(self, locations: Sequence[Location]) -> dict[str, str]:
        """Torchrun's variables, and the interface that leads to the first rank; none for a single rank."""
        if len(locations) == 1:
            return {}
        first, mine = locations[0], locations[self._rank].node
        neighbours = [rank for rank, location in enumerate(locations) if location.node == mine]
        interface = interface_towards(first.host)
        variables = {
            "RANK": self._rank,
            "WORLD_SIZE": len(locations),
            "LOCAL_RANK": 0 if self._has_real_gpu else neighbours.index(self._rank),
            "LOCAL_WORLD_SIZE": len(neighbours),
            "MASTER_ADDR": first.host,
            "MASTER_PORT": first.port,
            "GLOO_SOCKET_IFNAME": interface,
            "NCCL_SOCKET_IFNAME": interface,
        }
        return {name: str(value) for name, value in variables.items()}

    def _events(self, offset: int) -> bytes:
        path = self._folder / EVENTS
        if self._rank or not path.is_file():
            return b""
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(PIECE_BYTES)

    def _printed(self, exit_code: int | None) -> tuple[str, ...]:
        """New lines, read at most once in `REPORT_SECONDS`; after the engine's end, all remaining ones."""
        if self._log is None or (exit_code is None and time.monotonic() - self._log_read_at < REPORT_SECONDS):
            return ()
        self._log_read_at = time.monotonic()
        if exit_code is not None and self._engine:
            self._engine.log_tail()  # waits until the log is complete
        lines = self._log.read(LOG_BYTES)
        return tuple(lines if lines or exit_code is None else self._log.close())

    def _last_report(self, exit_code: int) -> Report:
        assert self._engine is not None
        failure = self._folder / f"failed-rank-{self._rank}.json"
        content = failure.read_bytes() if failure.is_file() else None
        return Report(exit_code=exit_code, failure=content, log_tail=self._engine.log_tail())
