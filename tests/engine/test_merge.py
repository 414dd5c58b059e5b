"""An adapter merged into its base model gives the same logits, and loads without PEFT."""

from __future__ import annotations

from pathlib import Path

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.tiny_model import make_model
from grpo_engine.merge import main


def make_adapter(base: Path, folder: Path) -> Path:
    """One that changes something."""
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)
    return folder


def test_merged_weights_speak_as_base_and_adapter_do(tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", hidden=32, layers=2)
    adapter, out = make_adapter(base, tmp_path / "adapter"), tmp_path / "merged"
    assert main(["--base", str(base), "--adapter", str(adapter), "--out", str(out)]) == 0
    ids = AutoTokenizer.from_pretrained(out)("12+7=", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        plain = AutoModelForCausalLM.from_pretrained(base)
        before = plain(ids).logits
        expected = PeftModel.from_pretrained(plain, str(adapter))(ids).logits
        found = AutoModelForCausalLM.from_pretrained(out)(ids).logits
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(found, before, atol=1e-3)
    assert (out / "model.safetensors").exists()


def test_without_the_base_model_it_says_so(tmp_path: Path) -> None:
    arguments = ["--base", str(tmp_path / "none"), "--adapter", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(arguments) == 1
