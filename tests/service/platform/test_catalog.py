"""The model catalogue: folders, the file beside them, the operator's file in production."""

import json
import os
from pathlib import Path

import pytest

from service.platform.catalog import Catalog, CatalogError, is_valid_name
from service.settings import Settings
from tests.service.job_samples import make_model


def test_each_folder_with_a_config_is_a_model(tmp_path: Path) -> None:
    make_model(tmp_path, "tiny")
    make_model(tmp_path, "Qwen/Qwen3-0.6B")
    (tmp_path / "models" / "empty").mkdir()
    catalog = Catalog(Settings(home=tmp_path))
    assert catalog.names() == ["Qwen/Qwen3-0.6B", "tiny"]
    entry = catalog.find("Qwen/Qwen3-0.6B")
    assert entry is not None
    assert entry.folder == tmp_path / "models" / "Qwen" / "Qwen3-0.6B"
    assert catalog.find("empty") is None


def test_an_added_model_is_available_at_once(tmp_path: Path) -> None:
    catalog = Catalog(Settings(home=tmp_path))
    assert catalog.names() == []
    added = catalog.add("big", "Qwen/Qwen3-0.6B", "abc123")
    assert added.folder is None
    found = Catalog(Settings(home=tmp_path)).find("big")
    assert found == added
    assert (found.path, found.revision) == ("Qwen/Qwen3-0.6B", "abc123")


def test_the_catalogue_is_on_disk_before_it_replaces_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    catalog = Catalog(Settings(home=tmp_path))
    catalog.add("big", "Qwen/Qwen3-0.6B")
    assert synced == [catalog.file.stat().st_ino]


def test_an_added_folder_must_hold_a_model(tmp_path: Path) -> None:
    catalog = Catalog(Settings(home=tmp_path))
    with pytest.raises(CatalogError, match=r"has no config\.json"):
        catalog.add("big", str(tmp_path))
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(CatalogError, match=r"has no config\.json: it is an adapter; merge it into its base"):
        catalog.add("big", str(tmp_path))
    with pytest.raises(CatalogError, match="neither a folder nor a hub id"):
        catalog.add("big", str(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("file", "reason"), [("pytorch_model.bin", "only safetensors are loaded"), ("tokenizer.json", "be read")]
)
def test_a_folder_that_no_worker_could_load_is_not_added(tmp_path: Path, file: str, reason: str) -> None:
    folder = make_model(tmp_path / "elsewhere")
    (folder / file).write_text("")
    catalog = Catalog(Settings(home=tmp_path))
    with pytest.raises(CatalogError, match=f"{folder} cannot be loaded: .*{file}.* {reason}"):
        catalog.add("big", str(folder))
    assert catalog.names() == []


def test_production_reads_the_operators_file_only(tmp_path: Path) -> None:
    make_model(tmp_path, "tiny")
    file = tmp_path / "catalogue.json"
    file.write_text(json.dumps({"base": {"path": "org/name", "revision": "r", "max_context_tokens": 512}}))
    catalog = Catalog(Settings(home=tmp_path, models=file))
    assert catalog.names() == ["base"]
    entry = catalog.find("base")
    assert entry is not None
    assert entry.max_context_tokens == 512


@pytest.mark.parametrize("content", ["{", "[]", '{"a": {"url": "x"}}', '{"../a": {"path": "x"}}'])
def test_a_broken_catalogue_file_is_reported(tmp_path: Path, content: str) -> None:
    file = tmp_path / "catalogue.json"
    file.write_text(content)
    with pytest.raises(CatalogError, match=r"catalogue\.json"):
        Catalog(Settings(home=tmp_path, models=file)).names()


@pytest.mark.parametrize("name", ["a", "Qwen/Qwen3-0.6B", "a_b.c-d"])
def test_good_names(name: str) -> None:
    assert is_valid_name(name)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", "../a", "a/../b", ".a", "a b", "a:b"])
def test_invalid_model_names_are_refused(name: str) -> None:
    assert not is_valid_name(name)
