"""Passes the requests of a rank's engine to the samplers, and the replies back to the engine.

The first rank puts each policy into Ray's object store, from which every sampler's host fetches it once. If
a sampler does not respond for `SILENCE_SECONDS`, its requests go to the next sampler until it responds again.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from grpo_engine.contract.sampling import (
    ENGINE_MESSAGE,
    PolicyWritten,
    SamplingAnswer,
    SamplingOrder,
    policy_file,
)
from worker.cluster.plan import SILENCE_SECONDS, ClusterLost
from worker.cluster.sampler import SamplerGroup

PATIENCE_SECONDS = 300.0
"""How long a request is offered to the samplers if none of them answers."""
KEPT_POLICIES = 2


class Relay:
    """Connects one rank's engine with the samplers."""

    def __init__(
        self, connection: Connection, folder: Path, samplers: SamplerGroup, ranks: Sequence[Any]
    ) -> None:
        self._connection, self._folder, self._samplers, self._ranks = connection, folder, samplers, ranks
        self._policies: dict[int, Sequence[Any]] = {}
        self._arrived = threading.Condition()
        self._sending = threading.Lock()
        self._pings: dict[int, Any] = {}
        """Number of a sampler → the last call that checked whether it responds."""
        self._requesters = ThreadPoolExecutor(len(samplers.actors), thread_name_prefix="request")

    def listen(self) -> None:
        """Serve the engine until it ends."""
        threading.Thread(target=self._listen, name="relay", daemon=True).start()

    def take_policy(self, version: int, policy: Sequence[Any]) -> None:
        """Use this object for requests with this version. It is in a list, because Ray would send its content
        otherwise."""
        with self._arrived:
            self._policies[version] = policy
            for old in sorted(self._policies)[:-KEPT_POLICIES]:
                del self._policies[old]
            self._arrived.notify_all()

    def _listen(self) -> None:
        with self._connection, suppress(EOFError, OSError):  # closing the connection ends a waiting engine
            while True:
                message = ENGINE_MESSAGE.validate_json(self._connection.recv_bytes())
                if isinstance(message, PolicyWritten):
                    self._share_policy(message.version)
                else:
                    self._requesters.submit(self._answer, message)

    def _share_policy(self, version: int) -> None:
        """Store the first rank's weights in the cluster and send all ranks a reference to them."""
        path = self._folder / policy_file(version)
        policy = [ray.put(path.read_bytes())]
        path.unlink()
        for rank in self._ranks:
            rank.take_policy.remote(version, policy)

    def _answer(self, order: SamplingOrder) -> None:
        try:
            reply, num_replaced = self._first_reply(order)
            answer = SamplingAnswer(number=order.number, reply=reply, num_replaced=num_replaced)
        except ClusterLost as lost:
            answer = SamplingAnswer(number=order.number, problem=str(lost))
        with suppress(OSError), self._sending:  # the engine has ended
            self._connection.send_bytes(answer.model_dump_json().encode())

    def _first_reply(self, order: SamplingOrder) -> tuple[str, int]:
        """The first reply. Raises ClusterLost if no sampler gives one."""
        policy, num_failed, problem = self._policy(order.version), 0, "none responds"
        for number in self._candidates(order.sampler):
            actor = self._samplers.actors[number]
            call = actor.sample.remote(self._samplers.files, order.version, policy, order.request)
            try:
                if self._is_answered(number, call):
                    reply: tuple[str, int] = ray.get(call)
                    return reply
                ray.cancel(call)
            except RayError as error:
                problem = str(error.cause if isinstance(error, RayTaskError) else error)[:500]
                num_failed += 1
            if num_failed > len(self._samplers.actors):
                break
        raise ClusterLost(problem)

    def _candidates(self, first: int) -> Iterator[int]:
        """Each sampler in turn, beginning with number `first`, again and again for `PATIENCE_SECONDS`.

        Those that have stopped responding are last.
        """
        count = len(self._samplers.actors)
        numbers = sorted([*range(first, count), *range(first)], key=self._is_silent)
        yield from numbers
        deadline = time.monotonic() + PATIENCE_SECONDS
        for number in cycle(numbers):
            if time.monotonic() > deadline:
                return
            time.sleep(1)
            yield number

    def _is_silent(self, number: int) -> bool:
        """Whether the sampler has not responded since it was last checked."""
        ping = self._pings.get(number)
        return ping is not None and not ray.wait([ping], timeout=0)[0]

    def _is_answered(self, number: int, call: Any) -> bool:
        """Wait for the answer as long as the sampler responds; False if it stops responding."""
        while not ray.wait([call], timeout=SILENCE_SECONDS)[0]:
            self._pings[number] = ping = self._samplers.actors[number].keep_alive.remote()
            if not ray.wait([ping], timeout=SILENCE_SECONDS)[0]:
                return False
        return True

    def _policy(self, version: int) -> Any:
        """Ray's reference to the weights; waits until the first rank has them."""
        with self._arrived:
            if not self._arrived.wait_for(lambda: version in self._policies, PATIENCE_SECONDS):
                raise ClusterLost(f"policy {version} did not arrive")
            return self._policies[version][0]
