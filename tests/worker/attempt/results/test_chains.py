"""A job that continues another one's result: card, adapter_config.json and commands name an existing base."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from service.platform.archives import unpack
from service.platform.catalog import Catalog
from service.platform.db import Database
from service.platform.storage import Storage
from service.platform.tables.core import Artifact, File
from service.settings import Settings
from tests.engine.run.export_samples import logits, make_base
from tests.worker.attempt.test_prepare import prepared
from tests.worker.jobs import insert_dataset, insert_file, insert_job, method, read_job
from worker.attempt.attempt import Worker
from worker.attempt.runner import run_job

SHORT = {
    "n_steps": 1,
    "checkpoint_interval": 1,
    "max_completion_tokens": 4,
    "group_size": 8,
    "learning_rate": 0.01,
}


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """One database: no test here depends on queries."""
    return sqlite_url


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
    query = select(File.storage_key).join(Artifact, Artifact.id == File.id)
    kinds = Artifact.kind.in_(("adapter", "model"))
    with database.reading() as session:
        key = session.scalars(query.where(Artifact.job_id == job_id, kinds)).one()
    storage.download(key, folder / f"{job_id}.tar.gz")
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
