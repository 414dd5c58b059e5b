"""One rank: an actor on the rank's host that supervises the engine process.

The actor dies with its driver, and the engine with the actor. If the driver is silent for `SILENCE_SECONDS`
(its host is unreachable), the actor ends itself: the job may already run elsewhere.
"""

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import ray

from grpo_engine.process.gpus import VISIBLE_DEVICES, count_visible_gpus
from service.platform.storage import open_storage
from service.settings import Settings
from worker.cluster.network import free_port, interface_towards
from worker.cluster.plan import SILENCE_SECONDS, Plan
from worker.launchers.base import EVENTS, engine_arguments
from worker.launchers.local import EngineProcess
from worker.launchers.run_directory import clean_up, run_directory
from worker.launchers.run_files import LocalRunFiles
from worker.launchers.warm_pool import EngineCommand

REPORT_SECONDS = 1.0
"""Longest wait of a report for news."""
LOOK_SECONDS = 0.02
PIECE_BYTES = 2**20
SET_BY_RAY = ("OMP_NUM_THREADS",)
"""Ray limits an actor's own threads; the engine sets those of the rank."""


@dataclass(frozen=True)
class Location:
    """Where a rank runs."""

    node: str
    host: str
    """Address of the host in the cluster."""
    port: int
    """A port that was free; the first rank's is used by all."""


@dataclass(frozen=True)
class Report:
    """News of a rank."""

    piece: bytes = b""
    """The next bytes of the first rank's events."""
    exit_code: int | None = None
    failure: bytes | None = None
    """The `failed` event of a later rank."""
    log_tail: tuple[str, ...] = ()


class Rank:
    """Use through Ray, with several threads."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._rank = plan, 0
        self._settings = Settings(**plan.settings)
        self._engine: EngineProcess | None = None
        self._folder = self._settings.runs_dir
        self._entered = ExitStack()
        self._last_call_at = time.monotonic()
        # the kernel kills the engine when the thread ends that started it
        self._starter = ThreadPoolExecutor(1)
        threading.Thread(target=self._end_when_silent, daemon=True).start()

    def locate(self) -> Location:
        """Where this rank runs."""
        node, host = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
        return Location(node, host, free_port())

    def enter(self, rank: int, first_rank: int) -> None:
        """Be this rank, and use the run directory of this host, which the host's first rank creates."""
        self._rank = rank
        runs = self._settings.runs_dir.resolve()
        self._folder = runs / self._plan.job_id / f"{self._plan.fence}.{first_rank}"
        if first_rank == rank:
            clean_up(runs)
            self._entered.enter_context(run_directory(self._folder))

    def files(self, method: str, *arguments: Any) -> Any:
        """Call a method of `LocalRunFiles` in the run directory."""
        files = LocalRunFiles(self._folder, open_storage(self._settings.storage_location))
        return getattr(files, method)(*arguments)

    def start(self, locations: Sequence[Location]) -> None:
        """Start the engine; the other ranks are started by their actors."""
        wanted = EngineCommand.of(self._settings)
        unwanted = {*SET_BY_RAY, *([] if self._has_real_gpu else [VISIBLE_DEVICES])}
        environment = {name: value for name, value in wanted.environment.items() if name not in unwanted}
        environment |= self._variables(locations) | dict(self._plan.environment)
        command = [*wanted.command, *engine_arguments(self._folder)]
        starting = self._starter.submit(EngineProcess, command, self._folder, environment)
        self._engine = starting.result()

    def report(self, offset: int) -> Report:
        """The first news, or an empty report after `REPORT_SECONDS`. `offset`: of the events' next byte."""
        deadline = time.monotonic() + REPORT_SECONDS
        while True:
            self._last_call_at = time.monotonic()
            exit_code = self._engine.poll() if self._engine else None  # before reading
            if piece := self._events(offset):
                return Report(piece)
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
        """SIGTERM for the engine; SIGKILL after the grace period."""
        if self._engine:
            self._engine.stop(grace_seconds)

    def kill(self) -> None:
        """SIGKILL for the engine and all its processes; returns when they have ended."""
        if self._engine:
            self._engine.close()

    def leave(self) -> None:
        """Kill the engine, and delete the run directory."""
        self.kill()
        self._entered.close()

    def _variables(self, locations: Sequence[Location]) -> dict[str, str]:
        """Torchrun's variables, the interface that leads to the first rank, and the GPU."""
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
        if self._plan.gpus:
            variables[VISIBLE_DEVICES] = self._plan.gpus[self._rank]
        return {name: str(value) for name, value in variables.items()} if len(locations) > 1 else {}

    @property
    def _has_real_gpu(self) -> bool:
        """Whether the rank's GPU exists; one that is only declared is a process on the CPU."""
        return bool(self._plan.gpus) or (self._plan.resource == "GPU" and count_visible_gpus({}) > 0)

    def _events(self, offset: int) -> bytes:
        path = self._folder / EVENTS
        if self._rank or not path.is_file():
            return b""
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(PIECE_BYTES)

    def _last_report(self, exit_code: int) -> Report:
        assert self._engine is not None
        failure = self._folder / f"failed-rank-{self._rank}.json"
        content = failure.read_bytes() if failure.is_file() else None
        return Report(exit_code=exit_code, failure=content, log_tail=self._engine.log_tail())

    def _end_when_silent(self) -> None:
        while time.monotonic() - self._last_call_at < SILENCE_SECONDS:
            time.sleep(LOOK_SECONDS * 10)
        os._exit(1)
