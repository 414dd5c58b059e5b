"""A bucket of an S3-compatible store behind a proxy that can inject faults."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.support.moto import Moto
from tests.support.s3_proxy import KEY_ID, S3Proxy

SECRET = "hushhushhushhushhushhushhushhushhushhush"
SESSION_TOKEN = "tokentokentoken"


@dataclass(frozen=True)
class Bucket:
    """`proxy.rule` decides what happens to its requests; others go to the store itself."""

    name: str
    proxy: S3Proxy
    store: Moto

    @property
    def location(self) -> str:
        return f"s3://{self.name}/a/prefix"

    @property
    def keys(self) -> list[str]:
        """Keys of all visible objects, without the prefix."""
        return [key.removeprefix("a/prefix/") for key in self.store.keys(self.name)]

    @property
    def num_unfinished_uploads(self) -> int:
        return self.store.num_unfinished_uploads(self.name)


def aws_environment(endpoint: str) -> dict[str, str]:
    """The `AWS_…` variables of a store at this endpoint."""
    return {
        "AWS_ENDPOINT": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": SESSION_TOKEN,
    }


@contextmanager
def new_bucket(store: Moto) -> Iterator[Bucket]:
    """An empty bucket; the `AWS_…` variables are set for it."""
    with S3Proxy(store.port) as proxy, pytest.MonkeyPatch.context() as patch:
        for name, value in aws_environment(proxy.url).items():
            patch.setenv(name, value)
        yield Bucket(store.new_bucket(), proxy, store)
