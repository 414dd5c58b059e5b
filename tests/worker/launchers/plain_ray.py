"""A Ray driver for tests: one placement group, four ranks with one GPU each, no code of the worker's.

Reads one command a line from its standard input and answers each with a line of JSON.
"""

import json
import os
import socket
import sys
import threading
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NUM_RANKS = 4
LOSS_SECONDS = 90


@ray.remote(num_cpus=1, num_gpus=1, max_restarts=0)
class Rank:
    """One actor of the group."""

    def place(self) -> dict[str, Any]:
        with socket.socket() as probe:
            probe.bind(("", 0))
            return {
                "address": ray.util.get_node_ip_address(),
                "port": probe.getsockname()[1],
                "pid": os.getpid(),
                "home": os.environ["GRPO_HOME"],
                "gpu": os.environ["CUDA_VISIBLE_DEVICES"],
            }

    def add_up(self, rank: int, address: str, port: int) -> float:
        """Sum of all ranks' numbers, over gloo."""
        import torch
        import torch.distributed as dist

        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        dist.init_process_group("gloo", f"tcp://{address}:{port}", rank=rank, world_size=NUM_RANKS)
        number = torch.tensor(float(rank))
        dist.all_reduce(number)
        dist.destroy_process_group()
        return number.item()

    def hold(self) -> None:
        """Never return."""
        threading.Event().wait()


class Driver:
    """The commands."""

    def __init__(self) -> None:
        ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, configure_logging=False)
        self.group = placement_group([{"CPU": 1, "GPU": 1}] * NUM_RANKS)
        ray.get(self.group.ready())
        self.ranks = [
            Rank.options(scheduling_strategy=PlacementGroupSchedulingStrategy(self.group, number)).remote()
            for number in range(NUM_RANKS)
        ]
        self.places = ray.get([rank.place.remote() for rank in self.ranks])

    def show(self) -> list[dict[str, Any]]:
        """Where each rank runs."""
        return self.places

    def add_up(self) -> list[float]:
        address, port = self.places[0]["address"], self.places[0]["port"]
        calls = [rank.add_up.remote(number, address, port) for number, rank in enumerate(self.ranks)]
        return ray.get(calls)

    def hold(self) -> int:
        """Leave a call to each rank unanswered."""
        self.calls = [rank.hold.remote() for rank in self.ranks]
        return len(self.calls)

    def lost(self) -> dict[str, Any]:
        """Wait for the first unanswered call that fails. Returns the rank's address and the error's name."""
        ((call, *_), _rest) = ray.wait(self.calls, timeout=LOSS_SECONDS)
        try:
            ray.get(call)
        except ray.exceptions.RayError as error:
            return {"address": self.places[self.calls.index(call)]["address"], "error": type(error).__name__}
        raise AssertionError("a call that never returns has returned")

    def nodes(self) -> list[str]:
        """Addresses of the live nodes."""
        return sorted(node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"])


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # Ray prints messages about lost nodes
    driver = Driver()
    for line in sys.stdin:
        print(json.dumps(getattr(driver, line.strip())()), file=answers, flush=True)


if __name__ == "__main__":
    main()
