"""`grpo models add` and `remove` with a hub, folders and jobs that use a model."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from service.hub.models import folder_of
from service.jobs.model.states import JobState
from service.platform.catalog import Catalog
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.embedded import call_grpo
from tests.service.job_samples import GRADER, METHOD, add_job, make_model, reinforcement
from tests.support.model_hub.server import REVISION, ModelHub

pytestmark = on_sqlite  # nothing here depends on the database

Command = Callable[..., CompletedProcess[str]]


@pytest.fixture
def models(settings: Settings, database: Database) -> Command:
    """`grpo models …` in this deployment."""

    def call(*arguments: str | Path) -> CompletedProcess[str]:
        return call_grpo("models", *arguments, environment={**os.environ, "GRPO_HOME": str(settings.home)})

    return call


def test_a_hub_id_alone_is_added_at_its_newest_revision(
    models: Command, settings: Settings, hub: ModelHub
) -> None:
    added = json.loads(models("add", hub.id, "--json").stdout)
    expected = {"name": hub.id, "path": hub.id, "revision": REVISION, "size_bytes": hub.size_bytes}
    assert added == {**expected, "catalogue": str(settings.home / "models.json")}
    assert Catalog(settings).names() == [hub.id]
    shown = models("add", "short", f"{hub.id}@{REVISION}").stdout
    expected_line = f"short is org/small at revision {REVISION} (25.2 MB; downloaded with its first job)"
    assert shown == f"{expected_line}, in {settings.home / 'models.json'}\n"


def test_an_unknown_hub_id_is_not_added(models: Command, settings: Settings, hub: ModelHub) -> None:
    done = models("add", "org/absent")
    assert done.returncode == 1
    assert f"there is no model org/absent on {hub.url}" in done.stderr
    assert Catalog(settings).names() == []


def test_without_a_network_only_a_commit_can_be_added(
    models: Command, settings: Settings, hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "code=hub_unreachable" in models("add", hub.id).stderr
    assert models("add", f"{hub.id}@{REVISION}").returncode == 0
    entry = Catalog(settings).find(hub.id)
    assert entry is not None
    assert (entry.revision, entry.must_download) == (REVISION, False)


def test_removing_a_hub_model_frees_its_files(models: Command, settings: Settings, hub: ModelHub) -> None:
    models("add", hub.id)
    folder = folder_of(settings.home, hub.id, REVISION)
    (folder / "model.safetensors").write_bytes(b"x" * 3_000_000)
    removed = json.loads(models("remove", hub.id, "--json").stdout)
    assert removed["freed_bytes"] > 3_000_000
    assert not folder.exists()
    assert Catalog(settings).names() == []


def test_removing_a_folder_of_another_place_keeps_it(
    models: Command, settings: Settings, tmp_path: Path
) -> None:
    folder = make_model(tmp_path / "elsewhere")
    models("add", "mine", folder)
    assert models("remove", "mine").stdout == f"Removed mine: no files deleted; the folder {folder} stays\n"
    assert (folder / "config.json").is_file()
    assert Catalog(settings).names() == []


def test_removing_a_folder_of_the_home_deletes_it(models: Command, settings: Settings) -> None:
    folder = make_model(settings.home, "tiny")
    assert models("remove", "tiny").stdout.startswith("Removed tiny: 0.0 MB freed")
    assert not folder.exists()


def test_a_folder_with_two_names_stays_until_the_last_one_is_removed(
    models: Command, settings: Settings
) -> None:
    folder = make_model(settings.home, "tiny")
    models("add", "second", folder)
    models("remove", "second")
    assert folder.exists()
    models("remove", "tiny")
    assert not folder.exists()


def test_a_folder_with_another_model_in_it_stays(models: Command, settings: Settings) -> None:
    folder = make_model(settings.home, "org")
    inner = make_model(settings.home, "org/small")
    models("remove", "org")
    assert (inner / "config.json").is_file()
    models("remove", "org/small")
    assert not inner.exists()
    models("remove", "org")
    assert not folder.exists()


@pytest.mark.parametrize("model", ["tiny", "ft:tiny:acme::abc"])
def test_a_model_that_an_unfinished_job_uses_is_not_removed(
    models: Command, settings: Settings, database: Database, model: str
) -> None:
    folder = make_model(settings.home, "tiny")
    job_id = add_job(database, JobState.QUEUED, model=model)
    done = models("remove", "tiny")
    assert done.returncode == 1
    assert f"tiny is in use by {job_id}: cancel them, or wait until they have finished" in done.stderr
    assert folder.exists()


def test_a_reward_model_that_an_unfinished_job_uses_is_not_removed(
    models: Command, settings: Settings, database: Database
) -> None:
    folder = make_model(settings.home, "judge")
    graders = {"style": {"type": "reward_model", "name": "style", "model": "judge"}, "exact": GRADER}
    multi = {"type": "multi", "name": "both", "graders": graders, "calculate_output": "style + exact"}
    method = METHOD.dump_python(METHOD.validate_python(reinforcement(multi)), mode="json")
    job_id = add_job(database, JobState.QUEUED, method=method)
    done = models("remove", "judge")
    assert done.returncode == 1
    assert f"judge is in use by {job_id}" in done.stderr
    assert folder.exists()


def test_an_unknown_model_is_not_removed(models: Command) -> None:
    done = models("remove", "absent")
    assert done.returncode == 1
    assert "there is no model absent in the catalogue" in done.stderr


def test_the_date_of_a_copied_model_is_when_it_came_here(settings: Settings, tmp_path: Path) -> None:
    original = make_model(tmp_path / "elsewhere")
    os.utime(original / "config.json", (1_000_000, 1_000_000))
    shutil.copytree(original, settings.home / "models" / "copied")
    catalog = Catalog(settings)
    added = catalog.add("mine", str(original))
    copied = catalog.find("copied")
    assert copied is not None
    assert copied.created > 1_700_000_000
    assert added.created > 1_700_000_000
