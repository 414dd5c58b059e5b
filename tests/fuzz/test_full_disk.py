"""Full disks, real ones of a few MiB: 507, nothing stays, and what fits afterwards is stored."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.fuzz.serving import Api, serving
from tests.service.job_samples import jsonl, row
from tests.support.servers import find_program, wait_until

STORAGE_BYTES, SCRATCH_BYTES = 2 * 2**20, 6 * 2**20


@pytest.fixture
def small_disks(postgres_url: str, tmp_path: Path) -> Iterator[Api]:
    """The service whose storage and whose temporary files lie on small disks, each its own."""
    home = tmp_path / "home"
    (home / "artifacts").mkdir(parents=True)
    disks = [
        *("--size", str(STORAGE_BYTES), "--tmpfs", str(home / "artifacts")),
        *("--size", str(SCRATCH_BYTES), "--tmpfs", str(home / "tmp")),
    ]
    bwrap = [find_program("bwrap"), "--die-with-parent", "--dev-bind", "/", "/", *disks]
    with serving(home, postgres_url, within=bwrap) as api:
        yield api


def put(api: Api, num_bytes: int) -> httpx.Response:
    content = jsonl(*[row("Hi", "y" * 1000)] * (num_bytes // 1000))
    with api.client() as client:
        return client.post("/v1/files", files={"file": ("x", content)}, data={"purpose": "fine-tune"})


def test_an_upload_that_no_disk_has_room_for_is_a_507_that_leaves_nothing(small_disks: Api) -> None:
    for num_bytes in (2 * SCRATCH_BYTES, 2 * STORAGE_BYTES, 2 * SCRATCH_BYTES):
        refused = put(small_disks, num_bytes)
        assert (refused.status_code, refused.json()["error"]["code"]) == (507, "insufficient_storage")
    assert small_disks.stored() == []
    with small_disks.client() as client:
        ready = client.get("/readyz").json()
    assert (ready["status"], ready["checks"]["disk"]) == ("degraded", "ok")
    assert ready["checks"]["storage"].endswith("MiB are free, 256 MiB are required")
    wait_until(lambda: small_disks.temporary_files() == [], what="the temporary file is closed")
    assert put(small_disks, STORAGE_BYTES // 2).status_code == 200
    assert len(small_disks.stored()) == 1
    with small_disks.client() as client:
        assert len(client.get("/v1/files").json()["data"]) == 1
