"""An export is the model that PEFT gives, in files that load without it; misfits are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from examples.tiny_model import Family, make_tokenizer
from grpo_engine.config.job import ModelSource
from grpo_engine.config.validation_split import held_out_rows, prompt_digest
from grpo_engine.contract.errors import ModelError
from grpo_engine.contract.events import Exported, Stopped
from grpo_engine.files.fingerprint import fingerprint
from grpo_engine.run.export import ExportRun
from tests.engine.conftest import write_rows
from tests.engine.run.export_samples import (
    export_of,
    logits,
    make_adapter,
    make_base,
    on_quantized_base,
    tensors_of,
)

WEIGHTS = "adapter_model.safetensors"


def exported(base: Path, adapter: Path | None, run_dir: Path, revision: str | None = None) -> Path:
    source = ModelSource(
        name="tiny", path=str(base), revision=revision, adapter=str(adapter) if adapter else None
    )
    *_, last = ExportRun(export_of(source), run_dir).run(lambda: False)
    assert isinstance(last, Exported)
    return run_dir / last.path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return make_base(tmp_path / "base")


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return make_adapter(base, tmp_path / "adapter")


@pytest.mark.parametrize("family", ["qwen3", "llama", "gpt2"])
def test_the_exported_model_answers_as_base_and_adapter_do(tmp_path: Path, family: Family) -> None:
    base = make_base(tmp_path / "base", family)
    (base / "LICENSE").write_text("terms")
    adapter = make_adapter(base, tmp_path / "adapter")
    folder = exported(base, adapter, tmp_path / "run")
    torch.testing.assert_close(logits(folder), logits(base, adapter), atol=1e-4, rtol=1e-4)
    assert not torch.allclose(logits(folder), logits(base), atol=1e-3)
    names = {path.name for path in folder.iterdir()}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json", "LICENSE"}


def test_the_weights_keep_the_number_format_of_the_base(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", dtype=torch.bfloat16)
    folder = exported(base, make_adapter(base, tmp_path / "adapter"), tmp_path / "run")
    assert {each.dtype for each in tensors_of(folder).values()} == {torch.bfloat16}


def test_whole_weights_are_exported_unchanged(base: Path, tmp_path: Path) -> None:
    before, after = tensors_of(base), tensors_of(exported(base, None, tmp_path / "run"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_stop_request_ends_it_without_a_result(base: Path, tmp_path: Path) -> None:
    run = ExportRun(export_of(ModelSource(name="tiny", path=str(base))), tmp_path / "run")
    (last,) = run.run(lambda: True)
    assert isinstance(last, Stopped)


def change_weights(adapter: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(adapter / WEIGHTS)
    change(tensors)
    save_file(tensors, adapter / WEIGHTS)


def refusal(base: Path, adapter: Path, run_dir: Path, revision: str | None = None) -> tuple[str, str]:
    """Code and message."""
    with pytest.raises(ModelError) as error:
        exported(base, adapter, run_dir, revision)
    return error.value.code, error.value.message


def test_an_adapter_of_another_shape_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    change_weights(adapter, lambda found: found.update({next(iter(found)): torch.ones(4, 7)}))
    code, message = refusal(base, adapter, tmp_path / "run")
    assert code == "not_mergeable"
    assert "size mismatch" in message


def test_weights_that_are_not_finite_are_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    change_weights(adapter, lambda found: [each.fill_(torch.nan) for each in found.values()])
    code, message = refusal(base, adapter, tmp_path / "run")
    assert code == "not_mergeable"
    assert "NaN" in message


@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings")
def test_an_output_layer_that_is_also_the_embedding_is_refused(base: Path, tmp_path: Path) -> None:
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=["lm_head"])
    code, message = refusal(base, adapter, tmp_path / "run")
    assert code == "not_mergeable"
    assert "shares with its embedding" in message


def test_an_embedding_that_is_not_the_output_layer_is_merged(tmp_path: Path) -> None:
    base = make_base(tmp_path / "base", family="llama")
    adapter = make_adapter(base, tmp_path / "adapter", target_modules=["embed_tokens", "lm_head"])
    merged = logits(exported(base, adapter, tmp_path / "run"))
    assert torch.allclose(merged, logits(base, adapter), atol=1e-4)
    assert not torch.allclose(merged, logits(base), atol=1e-2)


def test_a_base_of_another_revision_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    path = adapter / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"revision": "old"}))
    code, message = refusal(base, adapter, tmp_path / "run", revision="new")
    assert code == "base_model_changed"
    assert "revision old" in message


def test_a_base_with_other_weights_than_those_trained_on_is_refused(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    (adapter / "manifest.json").write_text(json.dumps({"model": {"fingerprint": fingerprint(base)}}))
    exported(base, adapter, tmp_path / "first")
    tensors = load_file(base / "model.safetensors")
    save_file(
        {name: each * 1.01 for name, each in tensors.items()},
        base / "model.safetensors",
        metadata={"format": "pt"},
    )
    assert refusal(base, adapter, tmp_path / "run")[0] == "base_model_changed"


def test_a_base_without_weights_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    (base / "model.safetensors").unlink()
    assert refusal(base, adapter, tmp_path / "run")[0] == "model_not_found"


def quantized_job(kind: str = "nf4", **settings: Any) -> dict[str, Any]:
    hyperparameters = {"quantization": kind, "lora": {"rank": 4, "alpha": 8}, **settings}
    return {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}


@pytest.mark.parametrize("split", [None, 0.25])
def test_a_merge_of_a_quantised_job_measures_what_the_other_base_changes(
    base: Path, adapter: Path, tmp_path: Path, split: float | None
) -> None:
    rows = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(40)]
    source = ModelSource(name="tiny", path=str(base), adapter=str(adapter))
    if split is None:
        held_out: dict[str, Any] = {"validation_file": str(write_rows(tmp_path / "held.jsonl", rows))}
    else:
        path = write_rows(tmp_path / "train.jsonl", rows)
        held_out = {"training_file": str(path), "validation_split": split, "seed": 7}
        numbers = held_out_rows([prompt_digest(row) for row in rows], split, 7)
        rows = [rows[number] for number in sorted(numbers)]
    run = ExportRun(export_of(source, method=quantized_job(), **held_out), tmp_path / "run")
    *_, last = run.run(lambda: False)
    assert isinstance(last, Exported)
    found = last.difference
    assert found is not None
    assert found.rows == (32 if split is None else 10)
    quantized, merged = (
        target_logprobs(each, rows[:32]) for each in (on_quantized_base(base, adapter), run.folder)
    )
    assert found.tokens == len(quantized)
    assert found.quantized == pytest.approx(float(quantized.mean()), abs=1e-4)
    assert found.merged == pytest.approx(float(merged.mean()), abs=1e-4)
    assert found.mean_absolute == pytest.approx(float((quantized - merged).abs().mean()), abs=1e-4)
    assert found.mean_absolute > 1e-3


def target_logprobs(model: Path | torch.nn.Module, rows: list[dict[str, str]]) -> torch.Tensor:
    """Log-probabilities of the rows' completions and of the end after each."""
    if isinstance(model, Path):
        model = AutoModelForCausalLM.from_pretrained(model)
    tokenizer = make_tokenizer()
    found = []
    for row in rows:
        prompt, target = (tokenizer(row[name], add_special_tokens=False).input_ids for name in row)
        ids = torch.tensor([[*prompt, *target, tokenizer.eos_token_id]])
        with torch.no_grad():
            logprobs = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        found.append(logprobs.gather(1, ids[0, len(prompt) :, None]).squeeze(1))
    return torch.cat(found)


def test_a_merge_without_held_out_rows_is_not_measured(base: Path, adapter: Path, tmp_path: Path) -> None:
    source = ModelSource(name="tiny", path=str(base), adapter=str(adapter))
    *_, last = ExportRun(export_of(source, method=quantized_job()), tmp_path / "run").run(lambda: False)
    assert isinstance(last, Exported)
    assert last.difference is None
