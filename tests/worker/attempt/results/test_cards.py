"""Model card and manifest beside the weights; equal runs have equal ones."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from sqlalchemy import select

from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Artifact, Checkpoint, File, Job
from tests.support.fake_engine import FINGERPRINT
from tests.worker.jobs import insert_job, read_job
from tests.worker.outcomes import run_until_idle
from worker.attempt.attempt import Worker
from worker.attempt.runner import run_job

Submit = Callable[..., str]


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """tests/service/jobs/results/test_manifests.py tests the queries on both databases."""
    return sqlite_url


def archive_of(database: Database, storage: Storage, job_id: str) -> bytes:
    query = select(File.storage_key).join(Artifact, Artifact.id == File.id)
    with database.reading() as session:
        key = session.scalars(query.where(Artifact.job_id == job_id, Artifact.kind == "adapter")).one()
    return storage.get_bytes(key)


def texts_of(archive: bytes) -> tuple[str, dict[str, Any]]:
    """Card and manifest."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        card, manifest = (tar.extractfile(name) for name in ("README.md", "manifest.json"))
        assert card is not None
        assert manifest is not None
        assert tar.getnames() == sorted(tar.getnames())
        return card.read().decode(), json.loads(manifest.read())


def test_the_card_describes_the_model_its_results_and_how_to_serve_it(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    job_id = submit()
    run_job(worker)
    card, manifest = texts_of(archive_of(database, storage, job_id))
    _, front, body = card.split("---\n", 2)
    matter = yaml.safe_load(front)
    assert (matter["base_model"], matter["library_name"], matter["pipeline_tag"]) == (
        "tiny",
        "peft",
        "text-generation",
    )
    assert {"grpo", "lora", "base_model:adapter:tiny"} <= set(matter["tags"])
    assert "| before training | 0.1000 | 0 |" in body
    assert "| after training | 0.2000 | 10 |" in body
    assert "validation moved by 0.1 (8 rows compared" in body
    assert "vllm serve tiny --enable-lora --lora-modules tuned=./ --max-lora-rank 16" in body
    assert 'PeftModel.from_pretrained(base, ".")' in body
    assert manifest["configuration_sha256"] in body
    assert manifest["model"]["fingerprint"] == FINGERPRINT


def test_the_manifest_names_data_rules_configuration_seed_and_versions(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    job_id = submit()
    run_job(worker)
    _, manifest = texts_of(archive_of(database, storage, job_id))
    job = read_job(database, job_id)
    with database.reading() as session:
        file = session.get_one(File, job.training_file)
    assert manifest["data"]["training_file"] == {"sha256": file.sha256, "bytes": file.num_bytes}
    rule = job.method["reinforcement"]["grader"]
    canonical = json.dumps(rule, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert manifest["graders"]["grader"]["sha256"] == hashlib.sha256(canonical.encode()).hexdigest()
    assert manifest["method"] == job.method
    assert manifest["seed"] == 7
    assert manifest["engine"] == {
        "versions": {"fake": "1"},
        "device": "cpu",
        "dtype": "float32",
        "sampler": "fake",
    }
    assert job_id not in json.dumps(manifest)


def test_the_archive_of_a_killed_run_equals_an_undisturbed_one(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    whole = submit()
    run_until_idle(worker, database)
    with database.reading() as session:
        same_rows = session.get_one(Job, whole).training_file
    again = insert_job(database, same_rows)
    with database.transaction() as session:
        session.get_one(Job, again).labels = {"note": "the same job"}
    run_until_idle(worker, database)
    killed = submit({"1": {"die_at": 7}})
    run_until_idle(worker, database)
    assert (read_job(database, killed).state, read_job(database, killed).attempt) == ("succeeded", 2)
    assert archive_of(database, storage, again) == archive_of(database, storage, whole)
    found, expected = (texts_of(archive_of(database, storage, job)) for job in (killed, whole))
    differing = {name for name in expected[1] if found[1][name] != expected[1][name]}
    assert differing == {"data"}, "only the rows differ: they control the faults of the fake engine"


def test_a_checkpoint_carries_a_card_without_an_evaluation(
    worker: Worker, database: Database, storage: Storage, submit: Submit
) -> None:
    job_id = submit()
    run_job(worker)
    with database.reading() as session:
        key = session.scalars(
            select(Checkpoint.adapter_key).where(Checkpoint.job_id == job_id, Checkpoint.step == 5)
        ).one()
    card, manifest = texts_of(storage.get_bytes(key))
    assert manifest["checkpoint"] == {"step": 5}
    assert manifest["evaluation"] == {}
    assert "this is one of its checkpoints" in card
