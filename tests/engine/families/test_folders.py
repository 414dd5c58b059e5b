"""Model folders that differ from what their families usually have."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from shutil import copytree

import pytest
import torch

from grpo_engine.config.job import ModelSource
from grpo_engine.contract.errors import DatasetError, ModelError
from grpo_engine.contract.events import StepFinished, Warned
from grpo_engine.models.loading import load_base
from tests.engine.families.catalogue import MIXED_WINDOWS, QWEN, Family
from tests.engine.families.jobs import run, supervised
from tests.engine.families.models import make_family
from tests.support.forking import client as forking


def test_a_file_that_was_not_copied_whole_is_an_error_of_the_model(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copytree(family_folder("qwen3"), tmp_path / "qwen3")
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(
        ModelError, match=r"qwen3 cannot be loaded: model.safetensors .* but its header requires"
    ):
        load_base(ModelSource(name="qwen3", path=str(folder)), torch.float32)


def test_a_file_that_may_not_be_read_is_named_with_its_mode(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copytree(family_folder("qwen3"), tmp_path / "qwen3")
    (folder / "model.safetensors").chmod(0)
    module = ["tests.engine.families.unreadable", str(folder)]
    with (tmp_path / "printed").open("w") as printed:
        assert forking.start(module, os.environ, printed.fileno()).wait() == 0
    found = (tmp_path / "printed").read_text()
    refused = f"qwen3 cannot be loaded: {folder}/model.safetensors (----------) cannot be read"
    assert found.splitlines()[-1].startswith(refused)


def test_a_folder_without_the_files_of_its_tokenizer_is_an_error_of_the_model(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copytree(family_folder("qwen3"), tmp_path / "qwen3")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    with pytest.raises(ModelError, match=r"qwen3 has no tokenizer: its files, such as tokenizer.json"):
        load_base(ModelSource(name="qwen3", path=str(folder)), torch.float32)


def test_a_tokenizer_that_lacks_its_main_file_is_an_error_of_the_model(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copytree(family_folder("qwen3"), tmp_path / "qwen3")
    (folder / "tokenizer.json").unlink()
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    expected = r"qwen3 has no tokenizer that can be loaded: its files, such as tokenizer.json, are missing"
    with pytest.raises(ModelError, match=expected):
        load_base(ModelSource(name="qwen3", path=str(folder)), torch.float32)


def test_a_type_of_model_that_transformers_does_not_know_is_an_error_of_one_line(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    source = with_config(copytree(family_folder("qwen3"), tmp_path / "qwen3"), model_type="foo9")
    with pytest.raises(ModelError, match="model type `foo9` but Transformers does not recognize") as refused:
        load_base(source, torch.float32)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_hidden_layers": 3, "layer_types": ["full_attention"] * 2}, r".*\(3\) must be equal to"),
        ({"rms_norm_eps": 1}, "Validation error for field 'rms_norm_eps'"),
        ({"num_key_value_heads": 0}, "ZeroDivisionError: "),
        ({"dtype": "float7"}, "AttributeError: .* 'float7'"),
        ({"pad_token_id": 99_999}, "AssertionError: Padding_idx must be within num_embeddings"),
        ({"hidden_act": "wavy"}, "KeyError: 'wavy'"),
    ],
    ids=str,
)
def test_a_configuration_that_transformers_cannot_use_is_an_error_of_one_line(
    family_folder: Callable[[str], Path], tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    source = with_config(copytree(family_folder("qwen3"), tmp_path / "qwen3"), **changes)
    with pytest.raises(ModelError, match=f"qwen3 cannot be loaded: {reason}") as refused:
        load_base(source, torch.float32)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("ends", ["<|im_end|>", True])
def test_stop_tokens_that_are_no_integers_are_an_error_of_the_model(
    family_folder: Callable[[str], Path], tmp_path: Path, ends: object
) -> None:
    folder = copytree(family_folder("qwen3"), tmp_path / "qwen3")
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    expected = "neither an integer nor a list of integers: " + re.escape(json.dumps(ends))
    with pytest.raises(ModelError, match=f"generation_config.json has an eos_token_id that is {expected}"):
        load_base(ModelSource(name="qwen3", path=str(folder)), torch.float32)


def with_config(folder: Path, **changes: object) -> ModelSource:
    config = json.loads((folder / "config.json").read_text())
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return ModelSource(name="qwen3", path=str(folder))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"num_hidden_layers": 4},
            r"its files lack 22 weights that config.json \(Qwen3ForCausalLM\) requires, such as "
            r"model.layers.2.input_layernorm.weight",
        ),
        (
            {"intermediate_size": 32},
            r"model.layers.0.mlp.down_proj.weight has the shape \[\d+, \d+\]; its config.json "
            r"\(Qwen3ForCausalLM\) requires \[\d+, 32\]",
        ),
        ({"model_type": "bert"}, r"its files lack \d+ weights that config.json \(BertLMHeadModel\) requires"),
    ],
)
def test_weights_that_are_not_those_of_the_configuration_are_an_error(
    family_folder: Callable[[str], Path], tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    """transformers would draw them at random, and the job would train noise."""
    source = with_config(copytree(family_folder("qwen3"), tmp_path / "qwen3"), **changes)
    with pytest.raises(ModelError, match=f"qwen3 cannot be loaded: {reason}"):
        load_base(source, torch.float32)


def test_weights_of_layers_that_the_configuration_does_not_have_are_a_warning(
    family_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = copytree(family_folder("qwen3"), tmp_path / "qwen3")
    with_config(folder, num_hidden_layers=1)
    events, _ = run(supervised(folder, tmp_path, {"rank": 2}), tmp_path / "run")
    (warning,) = [event for event in events if isinstance(event, Warned)]
    assert warning.code == "weights_unused"
    assert warning.message.startswith("11 weights of the model's files are not used, such as model.layers.1.")


def test_a_token_without_embedding_is_an_error_of_its_row(tmp_path: Path) -> None:
    """Tokens were added to the tokenizer, the model was not resized."""
    base = make_family(tmp_path / "base", Family("Qwen3Config", QWEN, "<|im_end|>"))
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    count = len(tokenizer["model"]["vocab"]) + len(tokenizer["added_tokens"])
    added = {**tokenizer["added_tokens"][0], "id": count, "content": "sum"}
    tokenizer["added_tokens"].append(added)
    (base / "tokenizer.json").write_text(json.dumps(tokenizer))
    expected = rf"row 1: the token 'sum' \({count}\) has no embedding: the model has {count}"
    with pytest.raises(DatasetError, match=expected):
        run(supervised(base, tmp_path, {"rank": 2}), tmp_path / "run")


def test_a_model_whose_layers_have_different_widths_is_trained(tmp_path: Path) -> None:
    shape = {
        **MIXED_WINDOWS,
        "intermediate_size": [48, 40],
        "activation_sparsity_pattern": [0.0, 0.0],
        "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 512,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
    }
    family = Family("Gemma3nTextConfig", QWEN, "<|im_end|>", shape=shape, is_tied=True)
    events, _ = run(supervised(make_family(tmp_path / "base", family), tmp_path, "full"), tmp_path / "run")
    assert [event.step for event in events if isinstance(event, StepFinished)] == [1, 2]
