"""Damage in a model's folder that is found before the model is loaded."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from grpo_engine.files.model_folder import damage

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 1192135096\n"


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """The folder of a model in one file."""
    save_file({"weight": torch.zeros(4, 4)}, tmp_path / WEIGHTS)
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def in_two_files(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    for name in SHARDS:
        save_file({name[:11]: torch.zeros(4)}, folder / name)
    listed = {name[:11]: name for name in SHARDS}
    (folder / INDEX).write_text(json.dumps({"weight_map": listed}))


def without_second_file(folder: Path) -> None:
    in_two_files(folder)
    (folder / SHARDS[1]).unlink()


def without_index(folder: Path) -> None:
    in_two_files(folder)
    (folder / INDEX).unlink()


def with_broken_index(folder: Path) -> None:
    in_two_files(folder)
    (folder / INDEX).write_text("{")


def copied_in_part(folder: Path) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-24])


def emptied(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes(b"")


def in_another_format(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def test_a_whole_folder_has_no_damage(whole: Path) -> None:
    assert damage(whole) is None
    in_two_files(whole)
    assert damage(whole) is None


def test_a_folder_without_weights_has_no_damage(whole: Path) -> None:
    (whole / WEIGHTS).unlink()
    assert damage(whole) is None


def with_settings(content: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "generation_config.json").write_text(content)


def with_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_settings('{"eos_token_id": 7'), "generation_config.json is not a JSON object"),
        (with_settings("[7]"), "generation_config.json is not a JSON object"),
        (
            with_settings('{"eos_token_id": true}'),
            "generation_config.json has an eos_token_id that is neither an integer nor a list of integers: t",
        ),
        (with_settings('{"eos_token_id": [7, 1.5]}'), "generation_config.json has an eos_token_id that is"),
        (with_adapter, "it contains an adapter (adapter_config.json) besides the model; move the adapter"),
        (without_second_file, f"{SHARDS[1]}, a file with weights, is missing"),
        (without_index, f"there is neither {WEIGHTS} nor an {INDEX} that lists other files"),
        (with_broken_index, f"{INDEX} cannot be read: Expecting property name"),
        (copied_in_part, f"{WEIGHTS} has 112 bytes, but its header requires 136: copy it again"),
        (
            in_another_format,
            "its weights are in pytorch_model.bin; only safetensors are loaded",
        ),
        (
            emptied,
            f"{WEIGHTS}: its header is not valid safetensors",
        ),
    ],
)
def test_a_damaged_folder_is_described(whole: Path, change: Callable[[Path], object], reason: str) -> None:
    change(whole)
    assert str(damage(whole)).startswith(reason)


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_pointer_of_git_lfs_is_not_the_file(whole: Path, name: str) -> None:
    (whole / name).write_text(POINTER)
    assert damage(whole) == f"{name} is a pointer of Git LFS; fetch the file itself with `git lfs pull`"
    (whole / name).unlink()
    assert damage(whole) is None
