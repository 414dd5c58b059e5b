"""Stored objects that no row names: found where they are old, and deleted on request."""

import json
import os
import shutil
import time
from datetime import timedelta
from pathlib import Path

import pytest

from service.jobs.model.states import JobState
from service.ops.orphans import ForeignStorage, find_orphans
from service.platform.db import Database
from service.platform.storage import Storage, open_storage
from service.settings import Settings
from tests.service.embedded import call_grpo, environment
from tests.service.job_samples import add_artifact, add_checkpoint, add_job, store_file
from tests.support.s3 import Bucket

NOW = timedelta(0)
LOST = ["files/file-lost", "jobs/ftjob-1/checkpoints/5-1/state.tar"]


@pytest.fixture
def storage(settings: Settings) -> Storage:
    return open_storage(settings.storage_location)


def add_things(settings: Settings, database: Database) -> None:
    """A dataset, a job with a result and a checkpoint, and two orphans."""
    store_file(settings, database, b"{}\n")
    job_id = add_job(database, JobState.SUCCEEDED)
    add_artifact(settings, database, job_id, "adapter", b"weights")
    add_checkpoint(settings, database, job_id, 5, b"weights")
    for key in LOST:
        open_storage(settings.storage_location).put(key, b"lost")


@pytest.mark.parametrize("database_url", ["sqlite", "postgresql"], indirect=True)
def test_an_object_without_a_row_is_found_once_it_is_old(
    settings: Settings, database: Database, storage: Storage
) -> None:
    add_things(settings, database)
    found = find_orphans(database, storage, NOW)
    assert list(found.items()) == [(key, 4) for key in LOST]
    assert find_orphans(database, storage) == {}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_database_of_another_deployment_yields_no_orphans(
    settings: Settings, database: Database, storage: Storage
) -> None:
    assert find_orphans(database, storage, NOW) == {}
    storage.put(LOST[0], b"another job's")
    with pytest.raises(ForeignStorage):
        find_orphans(database, storage, NOW)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_bucket_is_listed_below_its_prefix(settings: Settings, database: Database, bucket: Bucket) -> None:
    in_bucket = settings.model_copy(update={"storage_url": bucket.location})
    add_things(in_bucket, database)
    found = find_orphans(database, open_storage(bucket.location), -timedelta(minutes=1))
    assert list(found) == LOST


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_command_lists_and_deletes_only_old_ones(
    settings: Settings, database: Database, storage: Storage
) -> None:
    add_things(settings, database)
    folder = Path(settings.storage_location.removeprefix("file://"))
    past = time.time() - 2 * 86_400
    os.utime(folder / LOST[0], (past, past))
    variables = environment(settings.home)
    listed = call_grpo("orphans", environment=variables)
    assert listed.stdout.splitlines() == ["files/file-lost (4 bytes)", "1 orphan, 4 bytes"]
    deleted = call_grpo("orphans", "--delete", "--json", environment=variables)
    assert json.loads(deleted.stdout) == [{"key": LOST[0], "num_bytes": 4}]
    assert (storage.exists(LOST[0]), storage.exists(LOST[1])) == (False, True)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("command", ["audit", "orphans"])
def test_commands_on_an_unusable_storage_name_the_doctor(
    settings: Settings, database: Database, command: str
) -> None:
    add_things(settings, database)
    shutil.rmtree(settings.home / "artifacts")
    (settings.home / "artifacts").write_text("a file, not a folder")
    done = call_grpo(command, environment=environment(settings.home))
    assert done.returncode == 1
    assert done.stderr.startswith("Error: the storage does not answer Hint: `grpo doctor` shows the reason")
