"""An S3-compatible store in its own process (moto's server)."""

import itertools
import re
import signal
import sys

import httpx

from tests.support.servers import Server, is_ok


class Moto(Server):
    """An S3-compatible store in memory that accepts any credentials."""

    stop_signal = signal.SIGKILL
    """On SIGTERM, moto raises SystemExit in the code that its main thread runs, which may discard it."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = itertools.count(1)

    def command(self) -> list[str]:
        return [sys.executable, "-m", "moto.server", "--host", self.address, "--port", str(self.port)]

    @property
    def url(self) -> str:
        return f"http://{self.address}:{self.port}"

    def answers(self) -> bool:
        return is_ok(self.url)

    def new_bucket(self) -> str:
        """Create an empty bucket. Returns its name."""
        name = f"bucket-{next(self.numbers)}"
        httpx.put(f"{self.url}/{name}", verify=False, timeout=60).raise_for_status()
        return name

    def num_unfinished_uploads(self, bucket: str) -> int:
        """Multipart uploads that were neither completed nor aborted."""
        return (
            httpx.get(f"{self.url}/{bucket}?uploads", verify=False, timeout=60)
            .raise_for_status()
            .text.count("<Upload>")
        )

    def keys(self, bucket: str) -> list[str]:
        """Sorted keys of all its objects."""
        listed = (
            httpx.get(f"{self.url}/{bucket}?list-type=2", verify=False, timeout=60).raise_for_status().text
        )
        return sorted(re.findall(r"<Key>([^<]+)</Key>", listed))
