"""The whole service on a real GPU, as its user meets it: run by `make gpu-check`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from examples.tiny_model import make_model
from service.cli.commands.download import fetch_adapter, unpack
from service.cli.commands.watch import watch_job
from service.cli.http.client import JOBS
from tests.service.embedded import Up, grpo_job, grpo_up, write_rows

pytestmark = pytest.mark.needs_gpu
ENGINE = {"GRPO_ENGINE_PYTHON": sys.executable, "GRPO_ENGINE_MODULE": "grpo_engine"}


@contextmanager
def running(folder: Path, **settings: str) -> Iterator[Up]:
    make_model(folder / "home" / "models" / "tiny", hidden=64, layers=2, seed=1)
    with grpo_up(folder / "home", python=sys.executable, **ENGINE, **settings) as up:
        yield up


def finished(up: Up, **hyperparameters: Any) -> dict[str, Any]:
    """A job that has succeeded."""
    body = grpo_job(up.client.upload(write_rows(up.home / "train.jsonl"))["id"])
    reinforcement = body["method"]["reinforcement"]
    reinforcement["grader"] = {"type": "format", "pattern": "[0-9]", "match": "search"}
    reinforcement["hyperparameters"] |= hyperparameters
    job = watch_job(up.client, up.client.create(JOBS, body)["id"])
    assert job["status"] == "succeeded", job["failure"]
    assert job["actual"]["machine"] == torch.cuda.get_device_name()
    return job


def adapter_of(up: Up, job: dict[str, Any]) -> dict[str, torch.Tensor]:
    adapter = unpack(fetch_adapter(up.client, job["id"], up.home / job["id"])[0])
    return load_file(adapter / "adapter_model.safetensors")


def answer_of(up: Up, model: str) -> dict[str, Any]:
    question = {"role": "user", "content": "3+4="}
    body = {"model": model, "messages": [question], "max_tokens": 4, "logprobs": True}
    choice: dict[str, Any] = up.client.post("/v1/chat/completions", body)["choices"][0]
    return choice


def test_a_job_trains_on_the_gpu_and_its_adapter_is_downloaded_and_answers(tmp_path: Path) -> None:
    with running(tmp_path) as up:
        job = finished(up)
        assert all(each.isfinite().all() for each in adapter_of(up, job).values())
        tokens = answer_of(up, job["fine_tuned_model"])["logprobs"]["content"]
        assert 1 <= len(tokens) <= 4


def test_a_job_whose_engine_is_killed_on_the_gpu_continues_from_its_checkpoint(tmp_path: Path) -> None:
    (marks := tmp_path / "marks").mkdir()
    faults = {"GRPO_FAULT": "step.trained:kill@5", "GRPO_FAULT_MARKS": str(marks), "GRPO_WARM_ENGINE": "0"}
    with running(tmp_path, **faults) as up:
        job = finished(up, checkpoint_interval=2, n_steps=6, learning_rate=1e-3)
        rows = up.client.get(f"{JOBS}/{job['id']}/metrics")["data"]
        adapter = adapter_of(up, job)
    assert job["attempt"] == 2
    assert [row["step"] for row in rows] == list(range(1, 7))
    assert any(bool(each.any()) for name, each in adapter.items() if "lora_B" in name)
