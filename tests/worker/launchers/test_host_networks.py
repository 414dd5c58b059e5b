"""Networks of hosts and the stores on one of them (`tests.support.ray_hosts`)."""

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import needs_root
from tests.support.ray_hosts.network import Host, Network
from tests.support.ray_hosts.stores import stores_on
from tests.support.servers import wait_until
from tests.support.waiting import is_alive

pytestmark = needs_root
PORT = 7000
START_ORPHAN = """
import subprocess
nothing = subprocess.DEVNULL
child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=nothing, stderr=nothing)
print(child.pid)
"""


@pytest.fixture
def hosts() -> Iterator[list[Host]]:
    with Network(2) as network:
        yield network.hosts


def round_trip_seconds(hosts: list[Host], timeout: float = 60) -> float:
    """Time in which the first host connects to the second one."""
    first, second = hosts
    with second.namespace.entered():
        server = socket.create_server((second.address, PORT))
    begun = time.monotonic()
    with server, first.namespace.entered(), socket.create_connection((second.address, PORT), timeout):
        return time.monotonic() - begun


def test_a_cut_link_loses_packets_until_it_is_back(hosts: list[Host]) -> None:
    round_trip_seconds(hosts)
    hosts[1].link_down()
    with pytest.raises(TimeoutError):
        round_trip_seconds(hosts, timeout=0.3)
    hosts[1].link_up()
    round_trip_seconds(hosts)


def test_a_slow_link_delays_packets_in_both_directions(hosts: list[Host]) -> None:
    hosts[0].delay(milliseconds=200)
    assert round_trip_seconds(hosts) >= 0.4
    hosts[0].undelay()
    wait_until(lambda: round_trip_seconds(hosts) < 0.4)


def test_a_lossy_link_loses_packets(hosts: list[Host]) -> None:
    hosts[1].delay(milliseconds=0, loss_percent=100)
    with pytest.raises(TimeoutError):
        round_trip_seconds(hosts, timeout=0.3)
    hosts[1].delay(milliseconds=0, loss_percent=20)
    round_trip_seconds(hosts)


def test_each_host_has_its_own_ports_and_the_test_reaches_them_all() -> None:
    with Network(2) as network:
        servers = []
        for host in network.hosts:
            with host.namespace.entered():
                servers.append(socket.create_server(("", PORT)))
        for host, server in zip(network.hosts, servers, strict=True):
            with server, socket.create_connection((host.address, PORT), 10) as connection:
                assert connection.getsockname()[0] == network.address


def test_two_networks_share_no_address() -> None:
    with Network(1) as one, Network(1) as other:
        assert not one.range.overlaps(other.range)
        assert (
            one.hosts[0]
            .run(["ip", "-br", "address", "show", "dev", "eth0"])
            .split()[2]
            .startswith(one.hosts[0].address)
        )


def test_nothing_of_a_network_is_left_not_even_orphans() -> None:
    with Network(1) as network:
        (host,) = network.hosts
        host.delay(milliseconds=1)
        orphan = int(host.run([sys.executable, "-c", START_ORPHAN]))
        sleeping = host.popen(["sleep", "600"])
        assert host.pids() == sorted([orphan, sleeping.pid])
        assert sleeping.poll() is None
    assert sleeping.returncode == -9
    assert not is_alive(orphan)
    assert not Path("/sys/class/net", network.interface).exists()


def test_the_network_of_a_killed_process_disappears(tmp_path: Path) -> None:
    program = "import time, tests.support.ray_hosts.network as n\n"
    program += "with n.Network(2) as network: print(network.interface, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        interface = Path("/sys/class/net") / process.stdout.readline().strip()
        assert interface.exists()
        process.kill()
    wait_until(lambda: not interface.exists(), 120, "the interface has disappeared")


def test_hosts_share_a_database_and_a_store_on_a_host_of_their_own(hosts: list[Host]) -> None:
    first, second = hosts
    with stores_on(first) as stores:
        query = (
            f"import psycopg; print(psycopg.connect({stores.postgres.url!r}).execute('SELECT 7').fetchone())"
        )
        assert second.run([sys.executable, "-c", query]).strip() == "(7,)"
        stores.postgres.execute("SELECT 7")
        bucket = stores.s3.new_bucket()
        listed = f"import httpx; print(httpx.get('{stores.s3.url}/{bucket}?list-type=2').status_code)"
        assert second.run([sys.executable, "-c", listed]).strip() == "200"
        assert httpx.get(stores.s3.url).status_code == 200
