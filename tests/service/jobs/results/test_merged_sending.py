"""How a merged model is sent: in parts that fit, to few at once, never half of one and half of another."""

from __future__ import annotations

import io
import os
import random
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service.jobs.results.merging import layout
from service.jobs.results.merging.archive import merged_archive
from service.jobs.results.merging.bases import Folder
from service.jobs.results.merging.service import IN_ALL, merge_limit
from service.platform.db import Database
from service.platform.errors import TooManyRequests
from service.settings import Settings
from tests.servers import wait_until
from tests.service.embedded import run_grpo
from tests.service.jobs.results.merge_samples import (
    JOBS,
    adapter_beside_base,
    add_adapter_job,
    add_job_with_base,
    copied,
    merged,
    tensors_of,
    unpacked,
)


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """One database is enough: no test here is about queries."""
    return sqlite_url


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter; beside it, in `base`, the model that it belongs to, in several files."""
    return adapter_beside_base(tmp_path_factory.mktemp("merged"), shard_bytes=40_000)


@pytest.fixture
def job_id(settings: Settings, database: Database, adapter: Path) -> str:
    return add_job_with_base(settings, database, adapter)


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where adapters are unpacked: nothing is left there, whatever happened."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    wait_until(lambda: not list(folder.glob("grpo-merge-*")), what="adapters are gone")


def test_any_part_of_it_is_that_part_of_the_whole(adapter: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "BLOCK_BYTES", 1000)
    archive = merged_archive(Folder(adapter.with_name("base")), adapter)
    whole = b"".join(archive.pieces(0, archive.num_bytes))
    assert len(whole) == archive.num_bytes
    with tarfile.open(fileobj=io.BytesIO(whole)) as tar:
        borders = [place for entry in tar for place in (entry.offset, entry.offset_data)]
    numbers = random.Random(0)
    borders += [0, 1, len(whole) - 1, *(numbers.randrange(len(whole)) for _ in range(20))]
    for start in borders:
        end = min(len(whole), start + numbers.choice([1, 2, 700, 5000, len(whole)]))
        assert b"".join(archive.pieces(start, end)) == whole[start:end], (start, end)


def test_a_range_is_answered_in_part(client: TestClient, job_id: str) -> None:
    whole = merged(client, job_id).content
    part = merged(client, job_id, headers={"range": "bytes=1000-90000"})
    assert (part.status_code, part.content == whole[1000:90_001]) == (206, True)
    assert part.headers["content-range"] == f"bytes 1000-90000/{len(whole)}"


def test_its_length_is_told_and_a_head_has_the_same_headers(client: TestClient, job_id: str) -> None:
    get = merged(client, job_id)
    head = client.head(f"{JOBS}/{job_id}/adapter", params={"format": "merged"})
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-length", "etag", "content-type", "content-disposition", "x-step"):
        assert head.headers[name] == get.headers[name]
    assert get.headers["content-length"] == str(len(get.content))
    assert get.headers["content-type"] == "application/x-tar"
    assert "x-checksum-sha256" not in get.headers


def test_what_the_client_has_is_not_sent_again(client: TestClient, job_id: str) -> None:
    etag = merged(client, job_id).headers["etag"]
    again = merged(client, job_id, headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")


def test_a_range_outside_of_it_is_a_416(client: TestClient, job_id: str) -> None:
    size = int(merged(client, job_id).headers["content-length"])
    answer = merged(client, job_id, headers={"range": f"bytes={size}-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{size}")


def test_the_rest_of_what_has_changed_since_is_all_of_the_new_one(
    client: TestClient, settings: Settings, job_id: str
) -> None:
    etag = merged(client, job_id).headers["etag"]
    rest = {"range": "bytes=100-", "if-range": etag}
    assert merged(client, job_id, headers=rest).status_code == 206
    shard = next(settings.models_dir.glob("tiny/*.safetensors"))
    os.utime(shard, (1, 1))
    answer = merged(client, job_id, headers=rest)
    assert (answer.status_code, answer.headers["etag"] != etag) == (200, True)


def test_a_base_that_is_replaced_while_it_is_sent_breaks_the_transfer_off(
    client: TestClient, settings: Settings, job_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, shards = layout._copied, sorted(settings.models_dir.glob("tiny/*.safetensors"))

    def replaced_meanwhile(*given: object) -> Iterator[bytes]:
        os.utime(shards[-1], (1, 1))
        return real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(layout, "_copied", replaced_meanwhile)
    with pytest.raises(Exception, match="have changed meanwhile"):
        merged(client, job_id)


def test_one_tenant_gets_so_many_at_once(
    app: FastAPI, client: TestClient, other_client: TestClient, job_id: str, settings: Settings
) -> None:
    slot = app.state.merge_limit.slot
    with slot("tenant-a"), slot("tenant-a"):
        answer = merged(client, job_id)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_merges")
        assert answer.headers["retry-after"] == "30"
        with slot("tenant-b"):
            assert app.state.merge_limit.num_running == 3
    assert merged(client, job_id).status_code == 200


def test_all_tenants_together_get_so_many_at_once() -> None:
    found = merge_limit(per_tenant=2)
    with ExitStack() as stack:
        for tenant in range(IN_ALL):
            stack.enter_context(found.slot(str(tenant)))
        with pytest.raises(TooManyRequests):
            stack.enter_context(found.slot("another"))
    with found.slot("another"):
        assert found.num_running == 1


def test_who_leaves_gives_the_place_back(
    app: FastAPI,
    server_url: str,
    api_key: str,
    settings: Settings,
    database: Database,
    adapter: Path,
    tmp_path: Path,
    scratch: Path,
) -> None:
    """The other files of this model are more than what a connection holds."""
    base = copied(adapter.with_name("base"), settings)
    with (base / "vocabulary.txt").open("wb") as file:
        file.truncate(64 * 2**20)
    job_id = add_adapter_job(settings, database, adapter)
    headers = {"authorization": f"Bearer {api_key}"}
    with httpx.Client(base_url=server_url, headers=headers) as remote:
        for _ in range(settings.max_merges + 1):
            with remote.stream("GET", f"{JOBS}/{job_id}/adapter", params={"format": "merged"}) as answer:
                assert answer.status_code == 200
                next(answer.iter_raw())
                assert len(list(scratch.glob("grpo-merge-*"))) == 1
            wait_until(lambda: not app.state.merge_limit.num_running, what="the place is free")


@pytest.fixture
def environment(server_url: str, api_key: str) -> dict[str, str]:
    return {**os.environ, "GRPO_URL": server_url, "GRPO_API_KEY": api_key}


def grpo_merge(environment: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run_grpo("merge", *arguments, environment=environment)


def test_the_command_makes_the_folder_and_goes_on_with_what_it_has(
    client: TestClient, environment: dict[str, str], job_id: str, tmp_path: Path
) -> None:
    answer = merged(client, job_id)
    (tmp_path / "out").mkdir()
    # as a command that was broken off has left it; another byte there shows that it is not asked for again
    kept = bytearray(answer.content[:2000])
    kept[600] ^= 1
    (tmp_path / "out" / "..model.tar.part").write_bytes(kept)
    (tmp_path / "out" / "..model.tar.etag").write_text(answer.headers["etag"])
    done = grpo_merge(environment, job_id, "--to", tmp_path / "out" / "model")
    assert done.returncode == 0, done.stderr
    assert f"vllm serve {tmp_path}/out/model --served-model-name {job_id}" in done.stdout
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"]
    expected = unpacked(answer.content, tmp_path / "expected")
    names = {path.name for path in expected.iterdir()}
    assert {path.name for path in (tmp_path / "out" / "model").iterdir()} == names
    differing = {
        name
        for name in names
        if (expected / name).read_bytes() != (tmp_path / "out" / "model" / name).read_bytes()
    }
    assert differing == {"README.md"}
    again = grpo_merge(environment, job_id, "--to", tmp_path / "out" / "model")
    assert (again.returncode, "exists: a merge makes its folder" in again.stderr) == (1, True)


def test_the_command_merges_here_where_only_this_machine_has_the_base(
    environment: dict[str, str], settings: Settings, database: Database, adapter: Path, tmp_path: Path
) -> None:
    job_id = add_adapter_job(settings, database, adapter)
    refused = grpo_merge(environment, job_id, "--to", tmp_path / "model")
    assert (refused.returncode, "base_model_missing" in refused.stderr) == (1, True)
    base = adapter.with_name("base")
    done = grpo_merge(environment, job_id, "--base", base, "--to", tmp_path / "model")
    assert done.returncode == 0, done.stderr
    found, before = tensors_of(tmp_path / "model"), tensors_of(base)
    changed = {name for name, each in found.items() if not each.equal(before[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}
