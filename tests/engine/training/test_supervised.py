"""Supervised fine-tuning: the true cross-entropy of the assistant's turn; going on from a result."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.errors import ConfigError, DatasetError
from grpo_engine.contract.events import Evaluated, StepFinished
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.run.build import build_loop
from tests.engine.conftest import parameters_of, sum_rows, trained, write_rows


def demonstrations(count: int) -> list[dict[str, Any]]:
    return [
        {**row, "messages": [*row["messages"], {"role": "assistant", "content": row["answer"]}]}
        for row in sum_rows(count)
    ]


@pytest.fixture
def supervised(tmp_path: Path, model_folder: Callable[[str], Path]) -> Callable[..., RunConfig]:
    def make(**hyperparameters: Any) -> RunConfig:
        rows = write_rows(tmp_path / "demonstrations.jsonl", demonstrations(8))
        settings = {
            "n_steps": 2,
            "batch_size": 4,
            "learning_rate": 1e-3,
            "lora": {"rank": 4},
            **hyperparameters,
        }
        return RunConfig.model_validate(
            {
                "job_id": "ftjob-sft",
                "seed": 1,
                "model": {"name": "tiny", "path": str(model_folder("qwen3"))},
                "training_file": str(rows),
                "method": {"type": "supervised", "supervised": {"hyperparameters": settings}},
            }
        )

    return make


def test_the_first_loss_is_the_models_own_cross_entropy(
    supervised: Callable[..., RunConfig], tmp_path: Path
) -> None:
    trainer = build_loop(supervised(batch_size=8), tmp_path).method
    rows = RowReader(trainer.policy.tokenizer).demonstrations(demonstrations(8), 100)
    total, count = 0.0, 0
    with torch.no_grad():
        for row in rows:
            ids = torch.tensor([row.token_ids + row.target_ids])
            labels = ids.clone()
            labels[0, : len(row.token_ids)] = -100
            total += trainer.policy.model(ids, labels=labels).loss.item() * len(row.target_ids)
            count += len(row.target_ids)
    (event,) = [event for event in trainer.step(1) if isinstance(event, StepFinished)]
    assert event.metrics["loss"] == pytest.approx(total / count, rel=1e-5)
    assert event.metrics["num_tokens"] == count


def test_the_target_is_the_answer_and_one_end_of_sequence(make_policy: Callable[..., Policy]) -> None:
    tokenizer = make_policy().tokenizer
    (row,) = RowReader(tokenizer).demonstrations(demonstrations(1), 100)
    assert tokenizer.decode(list(row.token_ids)) == "<|user|>0+0=<|assistant|>"
    assert tokenizer.decode(list(row.target_ids)) == "0<|end|>"


def test_prompt_and_completion_rows_need_no_chat_template(make_policy: Callable[..., Policy]) -> None:
    tokenizer = make_policy().tokenizer
    (row,) = RowReader(tokenizer).demonstrations([{"prompt": "1+1=", "completion": "2"}], 100)
    assert tokenizer.decode(list(row.token_ids)) == "1+1="
    assert tokenizer.decode(list(row.target_ids)) == "2<|end|>"


def test_a_row_above_max_tokens_is_refused_not_cut(make_policy: Callable[..., Policy]) -> None:
    with pytest.raises(DatasetError, match=r"row 1 has 8 tokens, max_tokens is 7"):
        RowReader(make_policy().tokenizer).demonstrations(demonstrations(1), 7)


@pytest.mark.slow
def test_the_held_out_loss_falls(supervised: Callable[..., RunConfig], tmp_path: Path) -> None:
    held_out = write_rows(tmp_path / "held_out.jsonl", demonstrations(20)[8:])
    config = supervised(n_steps=60, batch_size=8, lora="full", learning_rate=3e-3)
    config = config.model_copy(update={"validation_file": str(held_out)})
    events = list(build_loop(config, tmp_path).run(lambda: False))
    losses = [event.metrics["loss"] for event in events if isinstance(event, Evaluated)]
    assert losses[0] > 4
    assert losses[-1] < 0.7 * losses[0]


def test_a_grpo_job_continues_the_adapter_and_takes_it_as_reference(
    supervised: Callable[..., RunConfig], make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    parent = trained(supervised(), tmp_path / "sft")
    adapter = tmp_path / "sft" / "checkpoints" / "step-00000002" / "adapter"
    job = make_config(beta=0.1, lora=None)
    job = job.model_copy(update={"model": job.model.model_copy(update={"adapter": str(adapter)})})
    trainer = build_loop(job, tmp_path / "grpo")
    before = parameters_of(trainer.method)
    assert all(torch.equal(before[name], value) for name, value in parameters_of(parent).items())
    metrics = [e.metrics for e in trainer.run(lambda: False) if isinstance(e, StepFinished)]
    assert metrics[0]["kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics[2]["kl"] > 1e-6
    assert json.loads((adapter / "adapter_config.json").read_text())["r"] == 4


def test_another_rank_than_the_parents_is_refused(
    supervised: Callable[..., RunConfig], make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    trained(supervised(), tmp_path / "sft")
    adapter = tmp_path / "sft" / "checkpoints" / "step-00000002" / "adapter"
    job = make_config(lora={"rank": 8})
    job = job.model_copy(update={"model": job.model.model_copy(update={"adapter": str(adapter)})})
    with pytest.raises(ConfigError, match=r"lora.rank is 8, but the adapter .* has rank 4"):
        build_loop(job, tmp_path / "grpo")


@pytest.mark.filterwarnings("ignore:Model has .tie_word_embeddings")
def test_an_adapter_on_the_embedding_learns(supervised: Callable[..., RunConfig], tmp_path: Path) -> None:
    lora = {"rank": 4, "target_modules": ["embed_tokens", "q_proj"]}
    loop = build_loop(supervised(lora=lora, batch_size=8, learning_rate=0.05), tmp_path)
    losses = [event.metrics["loss"] for event in loop.run(lambda: False) if isinstance(event, StepFinished)]
    assert losses[1] < losses[0] - 0.01
    trained_B = [each for name, each in parameters_of(loop.method).items() if "lora_embedding_B" in name]
    assert [bool(each.any()) for each in trained_B] == [True]
