"""Any manifest: a checkpoint is valid only if it names its unchanged files; otherwise it is damaged."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from grpo_engine.contract import manifest

JOB = "ftjob-1"
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
)
any_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole checkpoint, and a file beside it that no manifest may reach."""
    folder = tmp_path / "step-1"
    (folder / "adapter").mkdir(parents=True)
    for name in ("state.json", "optimizer.safetensors", "adapter/weights"):
        (folder / name).write_bytes(b"x")
    (tmp_path / "secret").write_bytes(b"x")
    manifest.write(folder, {"job_id": JOB})
    return folder


def change(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    path = folder / manifest.MANIFEST
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def name_also(folder: Path, name: str) -> None:
    """The manifest names one more file, of the same bytes as the others."""
    change(folder, lambda content: content["files"].update({name: content["files"]["state.json"]}))


def is_whole(folder: Path) -> bool:
    try:
        manifest.verify(folder, JOB)
    except manifest.DamagedCheckpoint:
        return False
    return True


@pytest.mark.parametrize(
    "name",
    [
        *("../secret", "/etc/hostname", "adapter/../../secret", "..", ".", "", "adapter", "adapter/"),
        *("a\0b", "state.json\0", "a" * 300, "a/" * 3000 + "b", "\ud800", "state.json/x"),
        *("./state.json", "adapter//weights", "adapter/./weights", "//etc/hostname", "..\\secret"),
    ],
    ids=lambda name: repr(name)[:30],
)
def test_a_name_that_is_not_a_file_of_the_checkpoint_damages_it(folder: Path, name: str) -> None:
    assert is_whole(folder)
    name_also(folder, name)
    assert not is_whole(folder)


def test_a_link_that_leads_outside_damages_it(folder: Path) -> None:
    (folder / "out").symlink_to(folder.parent)
    name_also(folder, "out/secret")
    assert not is_whole(folder)


def test_a_file_named_twice_damages_it(folder: Path) -> None:
    path = folder / manifest.MANIFEST
    entry = json.dumps(json.loads(path.read_text())["files"]["state.json"])
    twice = '"files": {"state.json": {"size": 0, "sha256": ""}, "state.json": ' + entry + ","
    path.write_text(path.read_text().replace('"files": {', twice, 1))
    assert json.loads(path.read_text())["files"]["state.json"] == json.loads(entry)
    assert not is_whole(folder)


@pytest.mark.parametrize("size", [0, 2, -1, 1 << 70, 1.5, "1", None, [1]])
def test_another_size_damages_it(folder: Path, size: Any) -> None:
    change(folder, lambda content: content["files"]["state.json"].update(size=size))
    assert not is_whole(folder)


@any_folder
@given(st.text())
@example("state.json")
def test_no_name_is_followed_out_of_the_checkpoint(folder: Path, name: str) -> None:
    whole = (folder / manifest.MANIFEST).read_text()
    name_also(folder, name)
    passes = is_whole(folder)
    (folder / manifest.MANIFEST).write_text(whole)
    known = {"state.json", "optimizer.safetensors", "adapter/weights"}
    assert passes is (name in known)


@any_folder
@given(JSON | st.dictionaries(st.sampled_from(["format", "files", "job_id"]), JSON))
@example(
    {"format": 1, "job_id": JOB, "files": {"state.json": 1, "optimizer.safetensors": 1, "adapter/w": []}}
)
def test_random_json_neither_crashes_nor_passes(folder: Path, content: Any) -> None:
    (folder / manifest.MANIFEST).write_text(json.dumps(content))
    assert not is_whole(folder)


@any_folder
@given(st.binary())
@example(b"[" * 100_000)
@example(b"9" * 10_000)
def test_random_bytes_neither_crash_nor_pass(folder: Path, content: bytes) -> None:
    (folder / manifest.MANIFEST).write_bytes(content)
    assert not is_whole(folder)


def test_a_shard_may_be_on_another_host_but_not_changed_on_this_one(folder: Path) -> None:
    name_also(folder, "optimizer/rank-1")
    assert not is_whole(folder)
    files = manifest.verify(folder, JOB, may_lack_shards=True)["files"]
    assert manifest.shards_elsewhere(folder, files) == {"optimizer/rank-1": files["state.json"]}
    (folder / "optimizer").mkdir()
    (folder / "optimizer" / "rank-1").write_bytes(b"x")
    assert is_whole(folder)
    assert manifest.shards_elsewhere(folder, files) == {}
    (folder / "optimizer" / "rank-1").write_bytes(b"y")
    with pytest.raises(manifest.DamagedCheckpoint, match="optimizer/rank-1 has the wrong sha256"):
        manifest.verify(folder, JOB, may_lack_shards=True)


@pytest.mark.parametrize("name", ["optimizer/../../secret", "optimizer/a\0", "optimizer//a", "optimizer/"])
def test_no_shard_of_another_host_is_outside_of_the_checkpoint(folder: Path, name: str) -> None:
    name_also(folder, name)
    with pytest.raises(manifest.DamagedCheckpoint, match="outside of the folder"):
        manifest.verify(folder, JOB, may_lack_shards=True)
