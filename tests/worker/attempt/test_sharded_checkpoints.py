"""Shards of a checkpoint on several hosts: all are stored before its row, and fetched, verified and deleted
with it."""

import io
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import select

from grpo_engine.contract import manifest
from grpo_engine.contract.events import CheckpointSaved
from grpo_engine.contract.manifest import DamagedCheckpoint
from grpo_engine.process.fault_points import InjectedFault
from service.jobs.store.repository import forget_model
from service.ops.orphans import find_orphans
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Checkpoint, Job
from tests.conftest import on_sqlite
from tests.worker.jobs import claimed
from tests.worker.outcomes import damage, messages
from worker.attempt import publish
from worker.attempt.attempt import Attempt
from worker.attempt.lease import Lease
from worker.attempt.prepare import _fetch_checkpoint
from worker.attempt.worker import Worker
from worker.cluster.files import ClusterFiles
from worker.launchers.run_files import LocalRunFiles

pytestmark = on_sqlite  # nothing here depends on the database

SHARDS = [f"rank-0000{rank}-of-00003.safetensors" for rank in range(3)]
"""The first is on the first host, the others are on the second."""
SMALL, LARGE = 100, 100_000


@dataclass(frozen=True)
class Hosts:
    """A place with run directories on several hosts; calls reach them as a driver passes them on."""

    folders: tuple[Path, ...]
    storage: Storage

    @property
    def files(self) -> ClusterFiles:
        return ClusterFiles(self.call)

    def call(self, target: str, method: str, *arguments: Any) -> Any:
        hosts = [LocalRunFiles(folder, self.storage) for folder in self.folders]
        if target == "files":
            return getattr(hosts[0], method)(*arguments)
        return [getattr(host, method)(*arguments) for host in hosts]

    def save(self, job_id: str, step: int) -> CheckpointSaved:
        """What an engine with three ranks leaves on two hosts."""
        name = f"checkpoints/step-{step:08d}"
        first, second = (folder / name for folder in self.folders)
        files = {first / "state.json": b"{}", first / "adapter/adapter_model.safetensors": b"w" * SMALL}
        shards = dict(zip(SHARDS, (first, second, second), strict=True))
        files |= {folder / "optimizer" / shard: shard.encode() * LARGE for shard, folder in shards.items()}
        for path, content in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        entries = {
            f"optimizer/{shard}": manifest.entry_of(folder / "optimizer" / shard)
            for shard, folder in shards.items()
        }
        manifest.write(first, {"job_id": job_id, "step": step}, entries)
        return CheckpointSaved(step=step, path=name, metrics={})


def hosts_in(folder: Path, storage: Storage, number: int) -> Hosts:
    folders = tuple(folder / f"host-{each}" for each in range(number))
    for each in folders:
        each.mkdir(parents=True)
    return Hosts(folders, storage)


@pytest.fixture
def hosts(tmp_path: Path, storage: Storage) -> Hosts:
    return hosts_in(tmp_path / "first", storage, 2)


@pytest.fixture
def attempt(worker: Worker, database: Database, hosts: Hosts) -> Iterator[Attempt]:
    job = claimed(database, hyperparameters={"max_checkpoints": 2})
    with Lease(database, worker.settings, job, monotonic()) as lease:
        yield Attempt(worker, job, lease, place=hosts)  # type: ignore[arg-type]


def rows(database: Database) -> list[Checkpoint]:
    with database.reading() as session:
        return list(session.scalars(select(Checkpoint).order_by(Checkpoint.step)))


def keys(storage: Storage) -> set[str]:
    return {key for key, _, _ in storage.listed()}


def shard_key(attempt: Attempt, step: int, number: int) -> str:
    return f"jobs/{attempt.job.id}/checkpoints/{step}-{attempt.job.fence}/{SHARDS[number]}"


def test_the_first_host_stores_its_own_shard_and_the_other_host_stores_the_rest(
    attempt: Attempt, hosts: Hosts, database: Database, storage: Storage
) -> None:
    publish.publish_checkpoint(attempt, hosts.save(attempt.job.id, 2))
    (row,) = rows(database)
    assert row.state_key is not None
    assert keys(storage) == set(row.storage_keys)
    assert list(row.shards) == [shard_key(attempt, 2, number) for number in (1, 2)]
    with tarfile.open(fileobj=io.BytesIO(storage.get_bytes(row.state_key))) as archive:
        packed = {member.name for member in archive}
    assert packed == {
        "adapter/adapter_model.safetensors",
        "manifest.json",
        f"optimizer/{SHARDS[0]}",
        "state.json",
    }
    assert storage.size(row.state_key) < 1.1 * len(SHARDS[0]) * LARGE
    digests = {row.state_key: row.state_sha256, row.adapter_key: row.adapter_sha256, **row.shards}
    assert {key: sha256(storage.get_bytes(key)).hexdigest() for key in keys(storage)} == digests


def test_each_host_gets_all_shards_before_it_resumes(
    attempt: Attempt, hosts: Hosts, storage: Storage, tmp_path: Path
) -> None:
    publish.publish_checkpoint(attempt, hosts.save(attempt.job.id, 2))
    others = hosts_in(tmp_path / "second", storage, 3)
    _fetch_checkpoint(replace(attempt, place=others))  # type: ignore[arg-type]
    for folder in others.folders:
        assert [path.name for path in folder.iterdir()] == ["checkpoints"]
        found = folder / "checkpoints" / "step-00000002"
        manifest.verify(found, attempt.job.id)
        assert sorted(path.name for path in (found / "optimizer").iterdir()) == SHARDS


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (damage, "is damaged: the stored object has the wrong sha256"),
        (lambda storage, key: storage.delete(key), "is missing"),
    ],
)
def test_a_checkpoint_with_a_damaged_or_missing_shard_is_skipped_for_the_older_one(
    attempt: Attempt,
    hosts: Hosts,
    database: Database,
    storage: Storage,
    tmp_path: Path,
    damage: Callable[[Storage, str], None],
    reason: str,
) -> None:
    for step in (2, 4):
        publish.publish_checkpoint(attempt, hosts.save(attempt.job.id, step))
    damage(storage, shard_key(attempt, 4, 2))
    others = hosts_in(tmp_path / "second", storage, 2)
    _fetch_checkpoint(replace(attempt, place=others))  # type: ignore[arg-type]
    for folder in others.folders:
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000002"]
    skipped = f"The checkpoint of step 4 is skipped: its shard {SHARDS[2]} {reason}"
    assert messages(database, attempt.job.id, "warn") == [skipped]
    assert [(row.step, row.state_key is None, len(row.shards)) for row in rows(database)] == [
        (2, False, 2),
        (4, True, 0),
    ]


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_checkpoint_whose_shard_is_not_that_of_the_manifest_is_never_visible(
    attempt: Attempt, hosts: Hosts, database: Database, is_gone: bool
) -> None:
    saved = hosts.save(attempt.job.id, 2)
    shard = hosts.folders[1] / saved.path / "optimizer" / SHARDS[1]
    shard.write_bytes(b"x" * shard.stat().st_size)
    if is_gone:
        shard.unlink()
    verified = attempt.files.verify(saved.path, attempt.job.id)
    what = "is missing on its host" if is_gone else "does not match its manifest"
    with pytest.raises(DamagedCheckpoint, match=f"its shard {SHARDS[1]} {what}"):
        publish._store_state(attempt, saved.path, "jobs/x", verified.elsewhere)
    publish.publish_checkpoint(attempt, saved)
    assert rows(database) == []


def test_a_worker_that_dies_between_the_uploads_and_the_row_leaves_only_orphans(
    attempt: Attempt, hosts: Hosts, database: Database, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish.publish_checkpoint(attempt, hosts.save(attempt.job.id, 2))
    before = keys(storage)

    def die(point: str) -> None:
        raise InjectedFault(point)

    monkeypatch.setattr(publish, "fault_point", die)
    with pytest.raises(InjectedFault, match=r"checkpoint\.uploaded"):
        publish.publish_checkpoint(attempt, hosts.save(attempt.job.id, 4))
    assert [row.step for row in rows(database)] == [2]
    orphans = find_orphans(database, storage, timedelta(0)).keys()
    assert orphans == keys(storage) - before
    assert {shard_key(attempt, 4, number) for number in (1, 2)} < orphans


def test_a_retired_checkpoint_and_a_deleted_model_take_their_shards_along(
    attempt: Attempt, hosts: Hosts, database: Database, storage: Storage
) -> None:
    for step in (2, 4, 6):
        publish.publish_checkpoint(attempt, hosts.save(attempt.job.id, step))
    kept = rows(database)
    assert [row.step for row in kept] == [4, 6]
    assert [len(row.storage_keys) for row in kept] == [4, 4]
    assert keys(storage) == {key for row in kept for key in row.storage_keys}
    assert find_orphans(database, storage, timedelta(0)) == {}
    with database.transaction() as session:
        job = session.get_one(Job, attempt.job.id)
        assert set(forget_model(session, job.tenant, job)) == keys(storage)
