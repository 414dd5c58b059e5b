"""The child process that talks to the hub: what it checks and downloads, and how it fails."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from service.hub.__main__ import HubFile, download
from service.hub.child_process import command, find_model
from service.hub.models import HubError, HubModel, folder_of, has_weights, is_hub_id, result_of
from service.settings import Settings
from tests.conftest import settings_for
from tests.support.model_hub.fixture import PRESENT, STALL_AFTER, WEIGHTS
from tests.support.model_hub.server import REVISION, ModelHub
from tests.support.servers import wait_until


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_for(tmp_path / "home")


def start(settings: Settings, hub: ModelHub) -> subprocess.Popen[str]:
    """A download of all files."""
    arguments = command(settings, hub.id, REVISION, weights=True)
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def downloaded(settings: Settings, hub: ModelHub) -> Path:
    """The folder after a download that has to succeed."""
    model = result_of(start(settings, hub).communicate(timeout=120)[0])
    return folder_of(settings.home, model.id, model.revision)


def refusal(settings: Settings, id: str, revision: str | None = None) -> HubError:
    with pytest.raises(HubError) as refused:
        find_model(settings, id, revision)
    return refused.value


def test_a_look_up_pins_the_revision_and_fetches_only_the_description(
    settings: Settings, hub: ModelHub
) -> None:
    found = find_model(settings, hub.id)
    assert (found.id, found.revision, found.size_bytes) == (hub.id, REVISION, hub.size_bytes)
    folder = folder_of(settings.home, hub.id, REVISION)
    names = {path.name for path in folder.iterdir()} - {".lock"}
    assert names == {"config.json", "tokenizer.json", "tokenizer_config.json"}
    assert not has_weights(folder)


def test_a_download_has_the_weights_and_no_code(settings: Settings, hub: ModelHub) -> None:
    folder = downloaded(settings, hub)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert has_weights(folder)
    assert {name for name, _ in hub.fetched}.isdisjoint({"modeling_small.py", "pytorch_model.bin"})


def test_a_killed_download_continues_where_it_was(settings: Settings, hub: ModelHub) -> None:
    hub.stall_after = STALL_AFTER
    first = start(settings, hub)
    part = folder_of(settings.home, hub.id, REVISION) / "model.safetensors.part"
    wait_until(lambda: part.is_file() and part.stat().st_size == PRESENT, 120)
    first.kill()
    first.communicate()
    hub.stall_after = None
    assert (downloaded(settings, hub) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.fetched[-1] == ("model.safetensors", PRESENT)


def test_of_two_downloads_one_fetches_and_the_other_waits(settings: Settings, hub: ModelHub) -> None:
    hub.stall_after = 1000
    both = [start(settings, hub)]
    assert hub.stalled.wait(60)
    both.append(start(settings, hub))
    hub.released.set()
    models = [result_of(process.communicate(timeout=120)[0]) for process in both]
    assert models[0] == models[1]
    assert [name for name, _ in hub.fetched].count("model.safetensors") == 1


def test_a_broken_connection_is_a_temporary_failure(settings: Settings, hub: ModelHub) -> None:
    find_model(settings, hub.id)
    hub.gone_after = 0
    process = start(settings, hub)
    with pytest.raises(HubError, match=r"did not deliver org/small") as broken:
        result_of(process.communicate(timeout=120)[0])
    assert (broken.value.code, broken.value.is_temporary) == ("hub_unreachable", True)


def test_damaged_weights_are_not_kept(settings: Settings, hub: ModelHub) -> None:
    part = folder_of(settings.home, hub.id, REVISION) / "model.safetensors.part"
    find_model(settings, hub.id)
    part.write_bytes(b"x" * 10)
    with pytest.raises(HubError, match=r"model\.safetensors of org/small does not have the checksum"):
        downloaded(settings, hub)
    assert not part.exists()
    assert has_weights(downloaded(settings, hub))


def test_a_part_that_is_too_long_is_downloaded_from_the_start(settings: Settings, hub: ModelHub) -> None:
    part = folder_of(settings.home, hub.id, REVISION) / "model.safetensors.part"
    find_model(settings, hub.id)
    part.write_bytes(WEIGHTS + b"x")
    assert (downloaded(settings, hub) / "model.safetensors").read_bytes() == WEIGHTS
    assert hub.fetched[-1] == ("model.safetensors", 0)


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.safetensors.part").write_bytes(b"abc")
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    complete = HubFile("model.safetensors", 3, hashlib.sha256(b"abc").hexdigest())
    download(HubModel("org/small", REVISION, 3), complete, tmp_path)
    assert synced == [(tmp_path / "model.safetensors").stat().st_ino]


def test_the_error_of_a_gated_model_has_the_next_action(
    settings: Settings, hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    error = refusal(settings, hub.id)
    assert (error.code, error.is_temporary) == ("model_gated", False)
    assert f"Accept its terms at {hub.url}/org/small, and set that account's HF_TOKEN" in error.hint
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert find_model(settings, hub.id).revision == REVISION


def test_an_unknown_model_and_an_unknown_revision_are_not_found(settings: Settings, hub: ModelHub) -> None:
    error = refusal(settings, "org/absent")
    assert (error.code, str(error)) == ("model_not_found", f"there is no model org/absent on {hub.url}")
    error = refusal(settings, hub.id, "d" * 40)
    assert (error.code, str(error)) == ("model_not_found", f"org/small has no revision {'d' * 40}")


def test_without_a_network_the_failure_is_temporary(
    settings: Settings, hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    error = refusal(settings, hub.id)
    assert (error.code, error.is_temporary) == ("hub_unreachable", True)
    assert "http://127.0.0.1:9 did not deliver org/small" in str(error)


def test_the_password_of_a_mirror_is_not_shown(
    settings: Settings, hub: ModelHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://user:hidden@127.0.0.1:9")
    error = refusal(settings, hub.id)
    assert "http://***@127.0.0.1:9 did not deliver" in error.text
    assert "hidden" not in error.text


def test_a_model_above_the_limit_is_refused_before_anything_is_fetched(tmp_path: Path, hub: ModelHub) -> None:
    error = refusal(settings_for(tmp_path / "home", hub_max_bytes=1_000_000), hub.id)
    assert error.code == "model_too_large"
    assert hub.fetched == []


def test_a_model_that_does_not_fit_the_disk_is_refused(tmp_path: Path, hub: ModelHub) -> None:
    error = refusal(settings_for(tmp_path / "home", min_free_disk_bytes=2**60), hub.id)
    assert error.code == "disk_full"
    assert hub.fetched == []


def test_a_model_without_safetensors_is_refused(settings: Settings, hub: ModelHub) -> None:
    del hub.files["model.safetensors"]
    assert refusal(settings, hub.id).code == "model_not_supported"


def test_shards_are_complete_when_each_one_is_there(settings: Settings, hub: ModelHub) -> None:
    weights = hub.files.pop("model.safetensors")
    hub.files |= {f"model-0000{n}-of-00002.safetensors": weights[n:] for n in (1, 2)}
    shards = {f"layer.{n}": f"model-0000{n}-of-00002.safetensors" for n in (1, 2)}
    hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": shards}).encode()
    folder = downloaded(settings, hub)
    assert has_weights(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert not has_weights(folder)


@pytest.mark.parametrize("places", ['{"a": 1}', '{"a": ["b"]}', '{"a": "../other/model.safetensors"}', "{}"])
def test_a_model_whose_index_does_not_name_its_files_is_refused(
    settings: Settings, hub: ModelHub, places: str
) -> None:
    hub.files["model-1.safetensors"] = hub.files.pop("model.safetensors")
    hub.files["model.safetensors.index.json"] = f'{{"weight_map": {places}}}'.encode()
    assert refusal(settings, hub.id).code == "model_not_supported"
    assert not has_weights(folder_of(settings.home, hub.id, REVISION))


def test_an_index_that_is_nested_too_deeply_is_refused(settings: Settings, hub: ModelHub) -> None:
    hub.files["model-1.safetensors"] = hub.files.pop("model.safetensors")
    hub.files["model.safetensors.index.json"] = b"[" * 100_000
    assert refusal(settings, hub.id).code == "model_not_supported"


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "org/a_b"])
def test_these_names_are_hub_models(name: str) -> None:
    assert is_hub_id(name)


@pytest.mark.parametrize(
    "name", ["tiny", "a/b/c", "/a", "a/", "../b", "a/..", "ft:a/b:c::d", "a b/c", "aé/b"]
)
def test_other_names_are_not_hub_models(name: str) -> None:
    assert not is_hub_id(name)
