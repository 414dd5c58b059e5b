"""Model card and manifest beside the weights: equal for equal runs, with a base that exists."""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from sqlalchemy import select

from service.platform.archives import unpack
from service.platform.catalog import Catalog
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Artifact, Checkpoint, File, Job
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.engine.run.export_samples import logits, make_base
from tests.support.fake_engine import FINGERPRINT
from tests.worker.attempt.test_prepare import prepared
from tests.worker.jobs import insert_dataset, insert_file, insert_job, method, read_job
from tests.worker.outcomes import run_until_idle
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker

pytestmark = on_sqlite  # tests/service/jobs/results/test_manifests.py tests the queries on both databases

Submit = Callable[..., str]


def archive_of(database: Database, storage: Storage, job_id: str) -> bytes:
    query = select(File.storage_key).join(Artifact, Artifact.id == File.id)
    with database.reading() as session:
        key = session.scalars(query.where(Artifact.job_id == job_id, Artifact.kind != "metrics")).one()
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
        "computation": None,
        "adapter_rank": None,
        "base_format": None,
        "base_class": None,
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


SHORT = {
    "n_steps": 1,
    "checkpoint_interval": 1,
    "max_completion_tokens": 4,
    "group_size": 8,
    "learning_rate": 0.01,
}


@pytest.fixture
def real_engine(settings: Settings, worker: Worker) -> Worker:
    (settings.models_dir / "tiny" / "config.json").unlink()
    make_base(settings.models_dir / "tiny")
    changed = worker.settings.model_copy(update={"engine_module": "grpo_engine"})
    object.__setattr__(worker, "settings", changed)
    return worker


def demonstrations(database: Database, storage: Storage) -> str:
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": f"{n}+1="}, {"role": "assistant", "content": str(n + 1)}]}
        for n in range(4)
    ]
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    return insert_file(database, storage, "file-demonstrations", content)


def reinforcement() -> dict[str, Any]:
    """A step with a reward that a random model earns sometimes: there is a digit in the completion."""
    shape = method(**SHORT).model_dump(mode="json")
    shape["reinforcement"]["grader"] = {"type": "format", "pattern": "[0-9]", "match": "search"}
    return shape


def unpacked(database: Database, storage: Storage, job_id: str, folder: Path) -> Path:
    """A job's result, as `grpo download --extract` lays it out."""
    (folder / f"{job_id}.tar.gz").write_bytes(archive_of(database, storage, job_id))
    unpack(folder / f"{job_id}.tar.gz", folder / job_id)
    return folder / job_id


def test_an_adapter_on_a_trained_model_loads_beside_it(
    real_engine: Worker, database: Database, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hyperparameters = {"n_steps": 1, "batch_size": 4, "learning_rate": 0.01, "lora": "full"}
    shape = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    parent = insert_job(database, demonstrations(database, storage), method=shape)
    run_job(real_engine)
    name = read_job(database, parent).fine_tuned_model
    assert name is not None
    child = insert_job(database, insert_dataset(database, storage), model=name, method=reinforcement())
    run_job(real_engine)
    assert read_job(database, child).state == "succeeded", read_job(database, child).failure

    base, adapter = (unpacked(database, storage, each, tmp_path) for each in (parent, child))
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == parent
    monkeypatch.chdir(tmp_path)
    named = Path(config["base_model_name_or_path"])
    assert float((logits(named, Path(child)) - logits(named)).abs().max()) > 1e-3
    card = (adapter / "README.md").read_text()
    assert f"grpo download {parent} --extract" in card
    assert f"`GET /v1/fine_tuning/jobs/{parent}/adapter`" in card
    assert f'AutoModelForCausalLM.from_pretrained("../{parent}")' in card
    assert f"vllm serve ../{parent} --enable-lora" in card
    assert "ft:" not in card.replace(name, ""), "the model's own name says what it was started from"
    assert (adapter / ".." / parent / "config.json").is_file()
    assert 'base_model: "tiny"' in (base / "README.md").read_text()


def test_an_adapter_on_an_adapter_names_the_base_of_both(
    worker: Worker, database: Database, storage: Storage, tmp_path: Path
) -> None:
    parent = insert_job(database, insert_dataset(database, storage))
    run_job(worker)
    name = read_job(database, parent).fine_tuned_model
    child = insert_job(database, insert_dataset(database, storage), model=name)
    run_job(worker)
    folder = unpacked(database, storage, child, tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert {key: manifest["model"][key] for key in ("name", "base", "base_place", "base_job")} == {
        "name": name,
        "base": "tiny",
        "base_place": "folder",
        "base_job": None,
    }
    assert "`tiny` is the base model's name in the service" in (folder / "README.md").read_text()


def test_an_adapter_of_a_hub_model_names_the_hub(
    worker: Worker, database: Database, storage: Storage, settings: Settings
) -> None:
    Catalog(settings).add("short", "org/long-name", "abc")
    config = prepared(worker, insert_job(database, insert_dataset(database, storage), model="short"))
    assert (config.model.name, config.model.path, config.model.revision) == (
        "org/long-name",
        "org/long-name",
        "abc",
    )
