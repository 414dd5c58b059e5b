"""PostgreSQL and an S3 store on a host of their own, as several machines share them.

They listen only on their host's address, which the other hosts and this process reach through the bridge.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tests.support.moto import Moto
from tests.support.ray_hosts.network import Host
from tests.support.s3 import aws_environment
from tests.support.servers import Postgres, Server


@dataclass(frozen=True)
class Stores:
    """Started servers of one host."""

    postgres: Postgres
    s3: Moto

    @property
    def environment(self) -> dict[str, str]:
        """The `AWS_…` variables with which a process reaches the S3 store."""
        return aws_environment(self.s3.url)


@contextmanager
def stores_on(host: Host) -> Iterator[Stores]:
    """Both servers on this host, stopped at the end."""
    postgres = Postgres()
    with (postgres.data / "pg_hba.conf").open("a") as rules:
        rules.write("host all all samenet trust\n")
    with _started_on(host, postgres), _started_on(host, s3 := Moto()):
        yield Stores(postgres, s3)


@contextmanager
def _started_on(host: Host, server: Server) -> Iterator[None]:
    server.address = host.address
    with host.namespace.entered():
        server.start()
    try:
        yield
    finally:
        server.__exit__()
