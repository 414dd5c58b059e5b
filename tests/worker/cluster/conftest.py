"""A worker in front of a Ray cluster: three hosts without a shared folder, the stores on a fourth."""

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from service.platform.db import Database
from service.platform.migrate import upgrade
from service.platform.storage import Storage
from service.settings import Settings
from tests.conftest import settings_for
from tests.support.ray_hosts.cluster import RayHost, address_of, program_of, ray_hosts
from tests.support.ray_hosts.network import Network, Process
from tests.support.ray_hosts.stores import Stores, stores_on
from tests.worker.conftest import environment_of
from tests.worker.outcomes import expected_weights, metric_steps, weights

GPUS = (0, 2, 2)
"""Declared ones of each host; the worker runs on the first."""
_numbers = itertools.count(1)


@dataclass
class Cluster:
    """The hosts, and the workers of a test."""

    nodes: list[RayHost]
    stores: Stores
    workers: list[Process] = field(default_factory=list)

    def start_worker(self, settings: Settings) -> Process:
        """A worker on the first host."""
        head = self.nodes[0]
        environment = environment_of(settings) | {"RAY_ADDRESS": address_of(head)}
        log = settings.home / f"worker-{len(self.workers)}.log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "worker"]
            given = head.environment | environment | {"GRPO_HOME": str(settings.home)}
            self.workers.append(head.host.popen(command, env=given, stdout=output, stderr=output))
        return self.workers[-1]

    def engine_pids(self, node: RayHost | None = None) -> list[int]:
        """Live engines on a host, or on all."""
        nodes = self.nodes if node is None else [node]
        return [pid for each in nodes for pid in each.host.pids() if _is_engine(pid)]

    def end_workers(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
            worker.wait()
        self.workers.clear()

    def repair(self) -> None:
        """Connect every host, and start Ray where it is gone."""
        for node in self.nodes:
            node.host.link_up()
            if not any(program_of(pid) == "raylet" for pid in node.host.pids()):
                node.restart()


def _is_engine(pid: int) -> bool:
    try:
        return b"\0--run-dir\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@pytest.fixture(scope="module")
def host_variables() -> dict[str, str]:
    """Variables of all hosts, beside those of the stores."""
    return {}


@pytest.fixture(scope="module")
def hosts(host_variables: dict[str, str]) -> Iterator[Cluster]:
    """The started cluster."""
    with (
        Network(len(GPUS) + 1) as network,
        stores_on(network.hosts[-1]) as stores,
        ray_hosts(network.hosts[:-1], GPUS, stores.environment | host_variables) as nodes,
    ):
        yield Cluster(nodes, stores)


@pytest.fixture
def cluster(hosts: Cluster) -> Iterator[Cluster]:
    """The cluster with all of its hosts; a test's workers end with it."""
    hosts.repair()
    yield hosts
    hosts.end_workers()


@pytest.fixture
def database_url(hosts: Cluster) -> Iterator[str]:
    """A migrated database of the cluster's PostgreSQL."""
    name = f"cluster_{next(_numbers)}"
    hosts.stores.postgres.execute(f"CREATE DATABASE {name}")
    yield hosts.stores.postgres.url_of(name)
    hosts.stores.postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def settings(database_url: str, hosts: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The worker's settings; no engine runs on its host."""
    for name, value in hosts.stores.environment.items():
        monkeypatch.setenv(name, value)
    home = tmp_path / "home"
    model = home / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    settings = settings_for(
        home,
        database_url,
        launcher="ray",
        storage_url=f"s3://{hosts.stores.s3.new_bucket()}",
        engine_module="tests.support.fake_engine",
        lease_seconds=10.0,
        heartbeat_seconds=0.5,
        self_fence_seconds=8.0,
        sweep_seconds=0.5,
        poll_seconds=0.1,
        stop_grace_seconds=5,
        retry_backoff_seconds=0.05,
        max_attempts_without_checkpoint=10,
        chat_models=0,
        warm_engine=False,
    )
    upgrade(settings)
    return settings


@pytest.fixture
def has_ended_well(database: Database, storage: Storage) -> Callable[[str], bool]:
    """Whether a job of the fake engine has every step once and the weights of an undisturbed run."""

    def check(job_id: str) -> bool:
        has_all_steps = metric_steps(database, job_id) == list(range(1, 11))
        return has_all_steps and weights(database, storage, job_id) == expected_weights()

    return check
