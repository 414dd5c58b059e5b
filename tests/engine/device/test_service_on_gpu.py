"""The whole service on a real GPU, as its user meets it: run by `make gpu-check`."""

import sys
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


def answer_of(up: Up, model: str) -> dict[str, Any]:
    question = {"role": "user", "content": "3+4="}
    body = {"model": model, "messages": [question], "max_tokens": 4, "logprobs": True}
    choice: dict[str, Any] = up.client.post("/v1/chat/completions", body)["choices"][0]
    return choice


def test_a_job_trains_on_the_gpu_and_its_adapter_is_downloaded_and_answers(tmp_path: Path) -> None:
    make_model(tmp_path / "home" / "models" / "tiny", hidden=64, layers=2, seed=1)
    with grpo_up(tmp_path / "home", python=sys.executable, **ENGINE) as up:
        file = up.client.upload(write_rows(tmp_path / "train.jsonl"))
        job = watch_job(up.client, up.client.create(JOBS, grpo_job(file["id"]))["id"])
        assert job["status"] == "succeeded", job["failure"]
        assert job["actual"]["machine"] == torch.cuda.get_device_name()
        adapter = unpack(fetch_adapter(up.client, job["id"], tmp_path / "downloads")[0])
        assert all(
            each.isfinite().all() for each in load_file(adapter / "adapter_model.safetensors").values()
        )
        tokens = answer_of(up, job["fine_tuned_model"])["logprobs"]["content"]
        assert 1 <= len(tokens) <= 4
