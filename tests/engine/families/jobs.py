"""Cheap jobs on a family's model, and what other libraries compute with their results."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from grpo_engine.config.job import ModelSource, RunConfig
from grpo_engine.contract.events import BaseEvent
from grpo_engine.models.policy import Policy
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, pack
from grpo_engine.objective.types import Prompt
from grpo_engine.rollout.sampler.base import Sampler, Sampling
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.run.build import build_loop
from grpo_engine.run.export import ExportRun
from tests.engine.conftest import write_rows
from tests.engine.injection import trained_batch
from tests.engine.run.export_samples import export_of

ROWS = [
    {
        "messages": [
            {"role": "user", "content": f"What is the sum of {a} and {b}?"},
            {"role": "assistant", "content": f"{a}+{b}={a + b}."},
        ]
    }
    for a, b in ((1, 2), (3, 5), (4, 4), (9, 7))
]
PLAIN_ROWS = [
    {"prompt": row["messages"][0]["content"], "completion": row["messages"][1]["content"]} for row in ROWS
]
"""For a tokenizer without a chat template."""
RESULT = Path("checkpoints/step-00000002")
"""In a run directory."""
IDS = tuple(range(20, 60))
"""Longer than the families' windows."""


def supervised(base: Path, folder: Path, lora: Any, dtype: str = "float32") -> RunConfig:
    """Two steps with a checkpoint after each."""
    settings = {"n_steps": 2, "batch_size": 2, "learning_rate": 0.02, "lora": lora, "checkpoint_interval": 1}
    if lora == "full":
        settings["learning_rate"] = 0.002
    return RunConfig.model_validate(
        {
            "job_id": "ftjob-family",
            "seed": 1,
            "model": {"name": base.name, "path": str(base)},
            "runtime": {"dtype": dtype},
            "training_file": str(write_rows(folder / "rows.jsonl", ROWS if find_spec("trl") else PLAIN_ROWS)),
            "method": {"type": "supervised", "supervised": {"hyperparameters": settings}},
        }
    )


def run(config: RunConfig, run_dir: Path) -> tuple[list[BaseEvent], Policy]:
    """Events and policy of a run from its newest checkpoint to its end."""
    loop = build_loop(config, run_dir)
    events = list(loop.run(lambda: False))
    return events, loop.method.policy


def engine_logprobs(policy: Policy, *, reference: bool = False) -> Tensor:
    """Log-probabilities of `IDS` after the first, as the engine trains them, or under its reference."""
    sequence = TrainingSequence(IDS[1:], (0.0,) * (len(IDS) - 1), (1.0,) * (len(IDS) - 1), 1.0)
    (batch,) = pack([TrainingGroup(IDS[:1], (sequence,))], 100_000, policy.device)
    with torch.no_grad():
        return policy.reference_logprobs(batch) if reference else policy.logprobs(batch)[0]


def sampling_differences(policy: Policy, sampler: Sampler | None = None) -> Tensor:
    """Between the log-probabilities of sampling and of training, of each sampled token."""
    prompts = [Prompt(n, "", tuple(range(20, 23 + 9 * n)), {}) for n in range(2)]
    found = []
    for group in (sampler or TorchSampler(policy, 64)).generate(prompts, 2, Sampling(max_tokens=10, seed=3)):
        batch = trained_batch(group, policy.device)
        with torch.no_grad():
            found.append((policy.logprobs(batch)[0] - batch.sampled_logprobs_N).abs())
    return torch.cat(found)


def plain_logprobs(base: Path, adapter: Path | None = None, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same by transformers and PEFT from files."""
    # transformers' own choice in bfloat16 fails if rows of experts are not a multiple of 16 bytes
    options = {} if dtype == torch.float32 else {"experts_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, **options)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    ids = torch.tensor([IDS])
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1)


def merged(base: Path, adapter: Path, folder: Path) -> Path:
    """The export of an adapter."""
    source = ModelSource(name=base.name, path=str(base), adapter=str(adapter))
    list(ExportRun(export_of(source), folder).run(lambda: False))
    return folder / "merged"


def tensors_of_run(run_dir: Path, step: int, kind: str) -> dict[str, bytes]:
    folder = run_dir / "checkpoints" / f"step-{step:08d}" / kind
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def adapter_config(adapter: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((adapter / "adapter_config.json").read_text())
    return found
