"""Base models, adapters and jobs for merges: real ones, small, made by transformers and peft."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path
from typing import Any

import torch
from fastapi.testclient import TestClient
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from examples.tiny_model import Family, make_model
from service.jobs.model.states import JobState
from service.jobs.results.manifest import Facts, document, text
from service.platform.db import Database
from service.settings import Settings
from tests.service.job_samples import MODEL, add_artifact, add_job, expanded
from worker.attempt.archives import pack_tar_gz

JOBS = "/v1/fine_tuning/jobs"
IDS = torch.arange(6, 30)[None]
HIDDEN = 32


def make_base(
    folder: Path,
    family: Family = "qwen3",
    *,
    dtype: torch.dtype = torch.float32,
    shard_bytes: int | None = None,
) -> Path:
    """A model folder; llama without tied embeddings. `shard_bytes`: in files of that size."""
    make_model(folder, family=family, hidden=HIDDEN, layers=2, tie_embeddings=family != "llama")
    if dtype != torch.float32 or shard_bytes:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size=shard_bytes or "5GB")
    return folder


def make_adapter(base: Path, folder: Path, **config: Any) -> Path:
    """A PEFT folder with a manifest that changes every linear layer.

    Its numbers are 64ths between -1 and 1, so that sums of their products are exact in any order.
    """
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    is_gpt2 = model.config.model_type == "gpt2"
    given = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "fan_in_fan_out": is_gpt2, **config}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        peft_model = get_peft_model(
            model, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **given)
        )
    for name, parameter in peft_model.named_parameters():
        if "lora_" in name:
            parameter.data = (parameter.data * 64).round().clamp(-64, 64) / 64
    peft_model.save_pretrained(folder, save_embedding_layers=False)
    (folder / "README.md").write_text("# A LoRA adapter\n")
    facts = Facts(MODEL, MODEL, None, expanded(), 7, {"gpus": 0}, {})
    (folder / "manifest.json").write_text(text(document(facts)))
    return folder


def copied(folder: Path, settings: Settings) -> Path:
    """The model of the catalogue."""
    return Path(shutil.copytree(folder, settings.models_dir / MODEL))


def packed(folder: Path) -> bytes:
    """As a worker stores it."""
    target = folder.with_suffix(".tar.gz")
    pack_tar_gz(folder, target)
    return target.read_bytes()


def add_adapter_job(settings: Settings, database: Database, adapter: Path, **more: Any) -> str:
    """A succeeded job whose result that is."""
    job_id = add_job(database, JobState.SUCCEEDED, **more)
    add_artifact(settings, database, job_id, "adapter", packed(adapter))
    return job_id


def merged(client: TestClient, job_id: str, *, headers: dict[str, str] | None = None, **params: Any) -> Any:
    return client.get(f"{JOBS}/{job_id}/adapter", params={"format": "merged", **params}, headers=headers)


def unpacked(archive: bytes, folder: Path) -> Path:
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        tar.extractall(folder, filter="data")
    return folder


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: each for file in folder.glob("*.safetensors") for name, each in load_file(file).items()}


def logits(folder: Path, adapter: Path | None = None) -> torch.Tensor:
    """Of a folder as anybody loads it; `adapter`: merged into it by peft."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    with torch.no_grad():
        found: torch.Tensor = model(IDS).logits
    return found


def adapter_beside_base(folder: Path, **base: Any) -> Path:
    """`folder/adapter`, and in `folder/base` the model that it belongs to."""
    return make_adapter(make_base(folder / "base", **base), folder / "adapter")


def add_job_with_base(settings: Settings, database: Database, adapter: Path) -> str:
    """A succeeded job, and its base in the catalogue: that of `adapter_beside_base`."""
    copied(adapter.with_name("base"), settings)
    return add_adapter_job(settings, database, adapter)
