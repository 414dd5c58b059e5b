"""`python -m worker.cluster.driver DESCRIPTOR`: the Ray driver of one attempt, a child process of its worker.

Reserves GPUs, starts the ranks and answers the worker's calls until the connection closes. Ray ends this
process if it loses the cluster, and all actors of this process when it ends.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from time import monotonic
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from worker.cluster.plan import Call, ClusterLost, Plan, Reply, Status
from worker.cluster.rank import Rank
from worker.cluster.ranks import Ranks
from worker.cluster.sampler import Sampler, SamplerGroup, end_actors

TOO_SMALL_SECONDS = 20.0
"""How long a cluster may have fewer GPUs or hosts than the attempt needs before the attempt fails."""
START_SECONDS = 300.0
"""How long the processes of the ranks may take to start."""
OBJECT_STORE_BYTES = 100_000_000
CALLS_AT_ONCE = 8
WAIT_SECONDS = 0.5
"""Maximum time for an answer to `waiting_for`."""
SAMPLER_RESTARTS = 10
"""How often Ray restarts a lost sampler."""
USED_BY_AN_ACTOR: dict[str, dict[str, Any]] = {
    "GPU": {"num_gpus": 1},
    "CPU": {"num_cpus": 1},
    "rank": {"resources": {"rank": 1}},
}
"""Resource of the plan → Ray's options for an actor."""
END_OF_GROUP = "import os, signal, sys; sys.stdin.read(); os.killpg(0, signal.SIGKILL)"
"""Program that kills its process group when its standard input is closed."""


class Driver:
    """The reserved part of the cluster, and the ranks in it."""

    def __init__(self, plan: Plan, report_waiting: Callable[[], None]) -> None:
        self._plan, self._report_waiting = plan, report_waiting
        self._group = reserve(plan)
        self._actors: list[Any] = []
        self._ranks: Ranks | None = None
        self._samplers = SamplerGroup()
        self._enough_at = self._reserved_at = monotonic()

    def waiting_for(self) -> str | None:
        """The missing resources; None: the ranks' processes run. Raises ClusterLost if the cluster is too
        small, or a rank does not start."""
        if self._ranks is not None:
            return None
        if not self._actors:
            if not self._group.wait(WAIT_SECONDS):
                return self._missing()
            self._reserved_at = monotonic()
            self._actors = [self._rank(number) for number in range(self._plan.num_ranks)]
            self._samplers = SamplerGroup([self._sampler(each) for each in range(self._plan.num_samplers)])
            self._samplers.keep_alive()
        try:
            locations = ray.get([actor.locate.remote() for actor in self._actors], timeout=WAIT_SECONDS)
        except GetTimeoutError:
            if monotonic() - self._reserved_at > START_SECONDS:
                raise ClusterLost(f"A rank did not start within {START_SECONDS:.0f} s.") from None
            return f"{len(self._actors)} ranks to start"
        nodes = [location.node for location in locations]
        # make the ranks of each host consecutive
        order = sorted(range(len(nodes)), key=lambda number: nodes.index(nodes[number]))
        actors = [self._actors[number] for number in order]
        locations = [locations[number] for number in order]
        self._ranks = Ranks(self._plan, actors, locations, self._report_waiting)
        return None

    def files(self, method: str, *arguments: Any) -> Any:
        return self.ranks.files(method, *arguments, everywhere=False)[0]

    def files_everywhere(self, method: str, *arguments: Any) -> list[Any]:
        self._samplers.note(method, arguments)
        return self.ranks.files(method, *arguments, everywhere=True)

    def start(self) -> None:
        self._samplers.start()
        self.ranks.start(self._samplers)

    def status(self) -> Status:
        return self.ranks.status

    def stop(self, grace_seconds: float) -> None:
        self.ranks.stop(grace_seconds)

    def kill(self) -> None:
        self.ranks.kill()
        end_actors(self._samplers.actors, "kill")

    def leave(self) -> None:
        """Delete the run directories and free the reserved part of the cluster."""
        if self._ranks is not None:
            self._ranks.leave()
            end_actors(self._samplers.actors, "leave")
        remove_placement_group(self._group)

    @property
    def ranks(self) -> Ranks:
        if self._ranks is None:
            raise ClusterLost("the ranks are not running yet")
        return self._ranks

    def _rank(self, number: int) -> Any:
        bundle = self._bundle(number, self._plan.num_ranks, first=0)
        return ray.remote(Rank).options(**self._options(bundle), max_restarts=0).remote(self._plan)

    def _sampler(self, number: int) -> Any:
        bundle = self._bundle(number, self._plan.num_samplers, first=self._plan.num_ranks)
        options = self._options(bundle) | {"max_restarts": SAMPLER_RESTARTS, "max_task_retries": -1}
        return ray.remote(Sampler).options(**options).remote(self._plan, number)

    def _bundle(self, number: int, count: int, *, first: int) -> int:
        """The bundle of one of `count` actors: its own, or that of its host."""
        hosts = self._plan.hosts
        return number * hosts // count if hosts > 1 else first + number

    def _options(self, bundle: int) -> dict[str, Any]:
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        options: dict[str, Any] = {"num_cpus": 0, "num_gpus": 0, "scheduling_strategy": place}
        options |= {"max_concurrency": CALLS_AT_ONCE + self._plan.num_ranks}
        return options | USED_BY_AN_ACTOR[self._plan.resource]

    def _missing(self) -> str:
        resource, wanted = self._plan.resource, self._plan.num_gpus
        shortage = self._shortage()
        if shortage is None or self._plan.may_grow:
            self._enough_at = monotonic()
        elif monotonic() - self._enough_at > TOO_SMALL_SECONDS:
            raise ClusterLost(shortage)
        free = int(ray.available_resources().get(resource, 0))
        return f"{max(1, wanted - free)} of {wanted} {resource}s"

    def _shortage(self) -> str | None:
        """Why the cluster could not run the attempt even if nothing else used it; None if it could."""
        resource, wanted, hosts = self._plan.resource, self._plan.num_gpus, self._plan.hosts
        sizes = [int(node["Resources"].get(resource, 0)) for node in ray.nodes() if node["Alive"]]
        if not hosts:
            reason = f"The attempt needs {wanted} {resource}s, but the cluster has only {sum(sizes)} left."
            return reason if sum(sizes) < wanted else None
        each = wanted // hosts
        suitable = sum(size >= each for size in sizes)
        needed = f"{hosts} host(s) with {each} {resource}(s) each"
        reason = f"The attempt needs {needed}, but the cluster has only {suitable} left."
        return reason if suitable < hosts else None


def reserve(plan: Plan) -> PlacementGroup:
    """Request the attempt's part of the cluster, which may not be free yet."""
    strategy = "PACK" if not plan.hosts else "STRICT_PACK" if plan.hosts == 1 else "STRICT_SPREAD"
    num_bundles = plan.hosts if plan.hosts > 1 else plan.num_gpus
    bundle = {plan.resource: float(plan.num_gpus // num_bundles)}
    return placement_group([bundle] * num_bundles, strategy=strategy)


@contextmanager
def joined_cluster(plan: Plan, temporary: Path) -> Iterator[None]:
    """Connect to the plan's cluster, or start a private one whose files are in `temporary`."""
    if plan.address is not None:
        ray.init(address=plan.address, log_to_driver=False)
    else:
        end_group_with_driver()
        ray.init(
            num_cpus=0,
            num_gpus=0,
            resources={plan.resource: plan.num_gpus},
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(temporary),
        )
    try:
        yield
    finally:
        ray.shutdown()


def end_group_with_driver() -> None:
    """Start a process that kills the driver's process group, which a private cluster is in, when the driver
    ends. The kernel kills only its children; Ray's agents would try to reach the cluster for a minute."""
    reading, _open_until_the_end = os.pipe()
    subprocess.Popen([sys.executable, "-I", "-S", "-c", END_OF_GROUP], stdin=reading)
    os.close(reading)


def answer(driver: Driver, call: Call) -> Reply:
    """Call a method of the driver. A rank's error is returned; any other means that the cluster is lost."""
    try:
        return Reply(getattr(driver, call.method)(*call.arguments))
    except RayTaskError as error:
        return Reply(error=error.cause)
    except ClusterLost as error:
        return Reply(error=error)
    except RayError as error:
        return Reply(error=ClusterLost(f"The cluster lost a rank: {type(error).__name__}."))


def main(arguments: Sequence[str]) -> None:
    """Serve the worker at the other end of the connection."""
    connection = Connection(int(arguments[0]))
    plan, temporary = connection.recv()
    with joined_cluster(plan, temporary):
        driver = Driver(plan, partial(connection.send, Reply(is_last=False)))
        connection.send(Reply())
        while True:
            try:
                call: Call = connection.recv()
            except EOFError:
                return
            connection.send(answer(driver, call))


if __name__ == "__main__":
    main(sys.argv[1:])
