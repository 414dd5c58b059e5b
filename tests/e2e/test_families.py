"""Every kind of reinforcement job through HTTP, on a small real model that it improves.

One `grpo up`; a supervised job makes the initial model, which a reinforcement job improves for each task.
"""

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.arithmetic import write_jsonl
from examples.tiny_model import make_model
from service.cli.commands.download import fetch, unpack
from service.cli.http.client import JOBS, Client
from tests.e2e.families import SUPERVISED_STEPS, TASKS, quantized_task, sums
from tests.engine.run.export_samples import on_quantized_base
from tests.service.embedded import grpo_up, succeed
from tests.support.chat_server import ChatServer

pytestmark = pytest.mark.slow


def judged(request: dict[str, Any]) -> str:
    """The scripted judge checks `3+4=7` in its last message."""
    found = re.fullmatch(r"(\d+)\+(\d+)=(\d+)", request["messages"][-1]["content"].strip())
    right = bool(found) and int(found[1]) + int(found[2]) == int(found[3])  # type: ignore[index]
    return json.dumps({"score": float(right)})


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = tmp_path_factory.mktemp("families") / "home"
    make_model(home / "models" / "tiny", hidden=64, layers=2, seed=1)
    endpoints = home / "endpoints.json"
    settings = {"GRPO_ENGINE_MODULE": "grpo_engine", "GRPO_WARM_ENGINE": "0"}
    with ChatServer(judged) as judge:
        endpoints.write_text(json.dumps({"judge": {"url": judge.url, "api_key": "judge-key"}}))
        with (
            grpo_up(home, **settings, GRPO_ENDPOINTS=str(endpoints)) as up,
            Client(up.url, Path(up.ready["key_file"]).read_text().strip()) as client,
        ):
            yield client


@pytest.fixture(scope="module")
def pupil(client: Client, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The initial model of all tasks, which a supervised job has trained."""
    rows = [row for task in TASKS.values() for row in task.imitated]
    path = write_jsonl(tmp_path_factory.mktemp("pupil") / "imitated.jsonl", rows)
    hyperparameters = {
        "n_steps": SUPERVISED_STEPS,
        "batch_size": 32,
        "learning_rate": 5e-3,
        "lr_schedule": "linear",
        "lora": "full",
        "max_tokens": 256,
        "checkpoint_interval": SUPERVISED_STEPS,
    }
    body = {
        "model": "tiny",
        "seed": 1,
        "training_file": client.upload(path)["id"],
        "method": {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}},
    }
    return str(succeed(client, body)["fine_tuned_model"])


@pytest.mark.parametrize("name", TASKS)
def test_a_job_of_every_kind_improves_on_its_own_task(
    client: Client, pupil: str, name: str, tmp_path: Path
) -> None:
    task = TASKS[name]
    file_id = client.upload(write_jsonl(tmp_path / "rows.jsonl", task.rows))["id"]
    body = {"model": pupil, "seed": 1, "training_file": file_id, "validation_file": file_id}
    job = succeed(client, {**body, "method": task.method})
    before, after = (job["eval"][key]["reward"] for key in ("baseline", "last"))
    assert after - before >= 0.2, f"{before} → {after}"
    assert job["eval"]["verdict"]["low"] > 0


def test_an_adapter_of_a_quantised_job_and_its_merge_are_what_the_card_says(
    client: Client, tmp_path: Path
) -> None:
    base = make_model(tmp_path / "tiny", hidden=64, layers=2, seed=1)  # equal to the catalogue's
    file_id = client.upload(write_jsonl(tmp_path / "rows.jsonl", sums()))["id"]
    method = quantized_task().method
    method["reinforcement"]["hyperparameters"] |= {"n_steps": 2, "learning_rate": 2e-2}
    body = {"model": "tiny", "seed": 1, "training_file": file_id, "validation_file": file_id}
    body["method"] = method
    job = f"{JOBS}/{succeed(client, body)['id']}"
    adapter, model = tmp_path / "adapter", tmp_path / "model"
    fetch(client, f"{job}/adapter", tmp_path / "adapter.tar")
    unpack(tmp_path / "adapter.tar", adapter)
    assert 'load_in_4bit=True, bnb_4bit_quant_type="nf4"' in (adapter / "README.md").read_text()
    export = client.create(f"{job}/exports", {"format": "merged"})
    export = client.awaited(f"{job}/exports/{export['id']}", export, lambda now: None)
    assert (export["status"], export["base"], export["quantization"]) == ("succeeded", "tiny", "nf4")
    fetch(client, export["content"], tmp_path / "merged.tar")
    unpack(tmp_path / "merged.tar", model)

    with client.streaming(f"{job}/rollouts.jsonl", headers={}, split="validation") as response:
        groups = [json.loads(line) for line in response.iter_lines()]
    last = [group for group in groups if group["step"] == 2]
    trained = completion_logprobs(on_quantized_base(base, adapter), base, last)
    merged = completion_logprobs(AutoModelForCausalLM.from_pretrained(model), base, last)
    difference = export["difference"]
    assert (difference["rows"], difference["tokens"]) == (len(last), len(trained))
    assert difference["quantized"] == pytest.approx(float(trained.mean()), abs=1e-4)
    assert difference["merged"] == pytest.approx(float(merged.mean()), abs=1e-4)
    assert difference["mean_absolute"] == pytest.approx(float((merged - trained).abs().mean()), abs=1e-4)
    assert difference["mean_absolute"] > 1e-4  # rounding is a hundredth of that
    card = " ".join((model / "README.md").read_text().split())
    assert f"a difference of {difference['merged'] - difference['quantized']:+.4f} nats" in card


def completion_logprobs(model: torch.nn.Module, base: Path, groups: Iterable[dict[str, Any]]) -> torch.Tensor:
    """Log-probabilities [N] of the tokens of each group's first completion."""
    tokenizer, found = AutoTokenizer.from_pretrained(base), []
    for group in groups:
        prompt = tokenizer(group["prompt"], add_special_tokens=False).input_ids
        ids = torch.tensor([[*prompt, *group["completions"][0]["token_ids"]]])
        with torch.no_grad():
            logprobs = model(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        found.append(logprobs.gather(1, ids[0, len(prompt) :, None]).squeeze(1))
    return torch.cat(found)
