"""A sampler that is not a rank: an actor with an engine that only samples, and the driver's side of it.

Every request contains what it needs (the run's files, the policy, the prompts). So Ray may restart a lost
sampler, even on another host, and repeat its request; equal requests give the same tokens.
"""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any

import ray
from ray.exceptions import RayError

from grpo_engine.contract.sampling import policy_file
from worker.cluster.engine_actor import EngineActor
from worker.cluster.plan import LAST_SECONDS, Call, ClusterLost, Plan

NUM_STARTS = 3
"""If the engine ends this often during one request, the request fails."""
PING_SECONDS = 2.0
FILLS_DIRECTORY = {"write", "download", "download_folder"}
"""Operations that a sampler repeats. It needs no checkpoint, because it gets each policy."""


class Sampler(EngineActor):
    def __init__(self, plan: Plan, number: int) -> None:
        super().__init__(plan)
        self._number = number
        self._connection: Connection | None = None
        self._version: int | None = None
        self._has_folder, self._num_files, self._is_ending = False, 0, False
        self._num_starts = int(ray.get_runtime_context().was_current_actor_reconstructed)
        self._turn = threading.Lock()

    def keep_alive(self) -> None:
        """Note that the driver is alive."""
        self._last_call_at = time.monotonic()

    def prepare(self, files: Sequence[Call]) -> None:
        """Fill the run directory and start the engine, which loads the model."""
        with self._turn:
            self._connected(files)

    def sample(self, files: Sequence[Call], version: int, policy: bytes, request: str) -> tuple[str, int]:
        """The engine's reply, and how often this sampler has been restarted.

        `policy`: content of the version's file. Raises ClusterLost if the engine keeps ending.
        """
        problem = ""
        with self._turn:
            for _ in range(NUM_STARTS):
                if self._is_ending:
                    break
                connection = self._connected(files)
                try:
                    if version != self._version:
                        (self._folder / policy_file(version)).write_bytes(policy)
                        self._version = version
                    connection.send_bytes(request.encode())
                    return connection.recv_bytes().decode(), self._num_starts - 1
                except (EOFError, ConnectionError):
                    problem = self._end_engine()
        raise ClusterLost(f"The engine of sampler {self._number} keeps ending: {problem}")

    def kill(self) -> None:
        """Kill the engine for good, which also ends a running request."""
        self._is_ending = True
        super().kill()

    def leave(self) -> None:
        self.kill()
        with self._turn:
            super().leave()

    def _connected(self, files: Sequence[Call]) -> Connection:
        """The connection to the engine; starts the engine if it is not running."""
        if self._connection is not None:
            return self._connection
        if not self._has_folder:
            self._use_folder(f"sampler-{self._number}", is_new=True)
            self._has_folder = True
        for call in files[self._num_files :]:
            self.files(call.method, *call.arguments)
            self._num_files += 1
        mine, other = Pipe()
        with other:
            arguments = ["--sampler", str(other.fileno())]
            gpu = self._plan.num_ranks + self._number
            self._start_engine(gpu, {}, arguments, [other.fileno()])
        self._num_starts += 1
        self._connection = mine
        return mine

    def _end_engine(self) -> str:
        """Forget the ended engine; returns its last lines."""
        assert self._engine is not None
        assert self._connection is not None
        super().kill()
        self._connection.close()
        self._connection = self._version = None
        return " ".join(self._engine.log_tail(3))[-500:]


@dataclass
class SamplerGroup:
    """A run's samplers, for its driver and ranks."""

    actors: Sequence[Any] = ()
    files: list[Call] = field(default_factory=list)
    """The calls that fill a sampler's run directory."""

    def note(self, method: str, arguments: Sequence[Any]) -> None:
        """Record the call that put a file into the run directories."""
        if method in FILLS_DIRECTORY:
            self.files.append(Call(method, tuple(arguments)))

    def keep_alive(self) -> None:
        """Call the actors from time to time; otherwise they would end."""
        for actor in self.actors:
            threading.Thread(target=_ping, args=(actor,), daemon=True).start()

    def start(self) -> None:
        """Start the engines."""
        for actor in self.actors:
            actor.prepare.remote(self.files)


def end_actors(actors: Sequence[Any], method: str) -> None:
    """Call `kill` or `leave` (`method`) on actors; those of unreachable hosts end themselves."""
    if ending := [getattr(actor, method).remote() for actor in actors]:
        ray.wait(ending, num_returns=len(ending), timeout=LAST_SECONDS)


def _ping(actor: Any) -> None:
    while True:
        with suppress(RayError):
            ray.get(actor.keep_alive.remote())
        time.sleep(PING_SECONDS)
