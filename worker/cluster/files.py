"""The run directories of an attempt's hosts, which the driver reaches.

Files for the engine are written on each host. Files from the engine are the first rank's, except for the
shards of a checkpoint, which each host has for its own ranks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from worker.launchers.run_files import Stored, VerifiedCheckpoint


@dataclass(frozen=True)
class ClusterFiles:
    """`RunFiles` on a cluster."""

    call_driver: Callable[..., Any]
    """Calls a method of the driver, by its name and with its arguments."""

    def write(self, name: str, text: str) -> None:
        self._on_each_host("write", name, text)

    def download(self, key: str, sha256: str, name: str) -> None:
        self._on_each_host("download", key, sha256, name)

    def download_folder(self, key: str, sha256: str, name: str) -> None:
        self._on_each_host("download_folder", key, sha256, name)

    def download_checkpoint(
        self, key: str, sha256: str, name: str, job_id: str, shards: Mapping[str, str]
    ) -> None:
        self._on_each_host("download_checkpoint", key, sha256, name, job_id, shards)

    def verify(self, name: str, job_id: str) -> VerifiedCheckpoint:
        verified: VerifiedCheckpoint = self._on_first_host("verify", name, job_id)
        return verified

    def pack(self, name: str, archive: str, texts: Mapping[str, str]) -> None:
        self._on_first_host("pack", name, archive, texts)

    def upload(self, name: str, key: str) -> Stored:
        stored: Stored = self._on_first_host("upload", name, key)
        return stored

    def upload_all(self, keys: Mapping[str, str]) -> list[Stored]:
        return [stored for of_host in self._on_each_host("upload_all", keys) for stored in of_host]

    def empty_outbox(self) -> None:
        self._on_first_host("empty_outbox")

    def _on_first_host(self, method: str, *arguments: Any) -> Any:
        return self.call_driver("files", method, *arguments)

    def _on_each_host(self, method: str, *arguments: Any) -> list[Any]:
        results: list[Any] = self.call_driver("files_everywhere", method, *arguments)
        return results
