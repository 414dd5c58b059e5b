"""Ray on several hosts (`tests.support.ray_hosts`), with a plain driver."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.ray_hosts.cluster import RayHost, address_of, ray_hosts
from tests.support.ray_hosts.network import Network
from tests.support.servers import wait_until
from tests.support.waiting import is_alive


class Driver:
    """A plain Ray driver as a process of a host (`plain_ray`)."""

    def __init__(self, node: RayHost, folder: Path) -> None:
        self.log = folder / "driver.log"
        with self.log.open("wb") as log:
            self.process = node.host.popen(
                [sys.executable, "-m", "tests.worker.launchers.plain_ray"],
                env=node.environment | {"RAY_ADDRESS": address_of(node)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )

    def ask(self, command: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n".encode())
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.log.read_text()[-3000:]
        return json.loads(answer)


@contextmanager
def driver_on(node: RayHost, folder: Path) -> Iterator[Driver]:
    driver = Driver(node, folder)
    yield driver
    driver.process.kill()
    driver.process.communicate()


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RayHost]]:
    """A head without GPUs and two hosts with two each. Nothing of them may be left afterwards."""
    with Network(3) as network, ray_hosts(network.hosts, num_gpus=[0, 2, 2]) as nodes:
        yield nodes
        pids = [pid for host in network.hosts for pid in host.pids()]
    assert not any(is_alive(pid) for pid in pids)
    assert not Path("/sys/class/net", network.interface).exists()
    assert not nodes[0].home.parents[1].exists()


def losses(node: RayHost) -> list[dict[str, str]]:
    """What a driver may see first when a node is lost."""
    return [{"address": node.address, "error": f"Actor{what}Error"} for what in ("Died", "Unavailable")]


@pytest.mark.several_hosts
def test_each_rank_sees_its_host_and_all_ranks_add_up_one_tensor(
    cluster: list[RayHost], tmp_path: Path
) -> None:
    with driver_on(cluster[0], tmp_path) as driver:
        places = driver.ask("show")
        expected = [(node.address, str(node.home), gpu) for node in cluster[1:] for gpu in "01"]
        assert sorted((place["address"], place["home"], place["gpu"]) for place in places) == expected
        assert driver.ask("add_up") == [6.0] * 4


@pytest.mark.several_hosts
def test_a_driver_loses_the_ranks_of_a_killed_raylet_and_the_host_joins_again(
    cluster: list[RayHost], tmp_path: Path
) -> None:
    _head, survivor, lost = cluster
    with driver_on(cluster[0], tmp_path) as driver:
        driver.ask("hold")
        lost.kill_raylet()
        assert driver.ask("lost") in losses(lost)
        wait_until(lambda: lost.address not in driver.ask("nodes"), 120, "the head has removed the node")
        assert survivor.address in driver.ask("nodes")
        lost.restart()
        assert driver.ask("nodes") == [node.address for node in cluster]


@pytest.mark.several_hosts
def test_a_host_whose_link_is_down_is_lost_and_ends_its_own_ranks(
    cluster: list[RayHost], tmp_path: Path
) -> None:
    lost = cluster[1]
    with driver_on(cluster[0], tmp_path) as driver:
        pids = {place["pid"] for place in driver.ask("show") if place["address"] == lost.address}
        driver.ask("hold")
        lost.host.link_down()
        assert driver.ask("lost") in losses(lost)
        wait_until(lambda: not pids & set(lost.host.pids()), 120, "the lost ranks have ended")
        lost.host.link_up()
        lost.restart()
        assert driver.ask("nodes") == [node.address for node in cluster]
