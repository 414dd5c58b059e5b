"""The main job on the embedded default: supervised, then GRPO, then an adapter that PEFT loads.

`grpo up`, the real engine, a tiny random model; everything over HTTP. The commands of
docs/write-a-job/before-training.md run there too, because they need the same service.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from examples.arithmetic import make_rows, supervised_rows, write_jsonl
from examples.decoding import accuracy, answers, greedy_tokens
from examples.tiny_model import make_model
from service.cli.commands.download import fetch_adapter, unpack
from service.cli.http.client import JOBS, Client
from tests.e2e.rollouts import evaluations
from tests.service.embedded import ROOT, Up, engine_python, grpo_job, grpo_up, succeed

pytestmark = pytest.mark.slow

MAX_TOKENS = 6
TRAIN, HELD_OUT = make_rows(256, 24, left=range(10), right=range(10), seed=2)


@dataclass(frozen=True)
class Trained:
    """Both finished jobs with their unpacked results; the service still runs."""

    up: Up
    supervised: dict[str, Any]
    reinforced: dict[str, Any]
    model: Path
    adapter: Path
    merged: Path
    evaluations: dict[int, list[list[int]]]
    rewards: list[float]


def supervised_job(training_file: str) -> dict[str, Any]:
    hyperparameters = {"n_steps": 64, "batch_size": 32, "learning_rate": 5e-3, "lora": "full"}
    method = {"type": "supervised", "supervised": {"hyperparameters": hyperparameters}}
    return {"model": "tiny", "training_file": training_file, "seed": 3, "method": method}


def reinforcement_job(training_file: str, validation_file: str, model: str) -> dict[str, Any]:
    body = grpo_job(training_file, steps=6, model=model) | {"validation_file": validation_file}
    body["method"]["reinforcement"]["hyperparameters"] |= {
        "prompts_per_step": 8,
        "group_size": 8,
        "beta": 0.02,
        "learning_rate": 2e-3,
        "max_completion_tokens": MAX_TOKENS,
        "eval_interval": 6,
        "lora": {"rank": 8, "alpha": 16},
    }
    return body


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    folder = tmp_path_factory.mktemp("embedded")
    make_model(folder / "home" / "models" / "tiny", hidden=64, layers=2, seed=1)
    files = {
        "supervised": write_jsonl(folder / "supervised.jsonl", supervised_rows(TRAIN)),
        "train": write_jsonl(folder / "train.jsonl", TRAIN),
        "held_out": write_jsonl(folder / "held_out.jsonl", HELD_OUT),
    }
    python = engine_python(folder, "jobs-ended")  # the peak memory of real processes is tested
    engine = {"GRPO_ENGINE_PYTHON": str(python), "GRPO_ENGINE_MODULE": "grpo_engine"}
    with grpo_up(folder / "home", **engine, GRPO_WARM_ENGINE="0") as up:
        key = Path(up.ready["key_file"]).read_text().strip()
        with Client(up.url, key) as client:
            ids = {name: client.upload(path)["id"] for name, path in files.items()}
            supervised = succeed(client, supervised_job(ids["supervised"]))
            body = reinforcement_job(ids["train"], ids["held_out"], supervised["fine_tuned_model"])
            reinforced = succeed(client, body)
            (folder / "jobs-ended").touch()
            model = unpack(fetch_adapter(client, supervised["id"], folder / "downloads")[0])
            merged = folder / "merged"
            done = up.grpo("merge", reinforced["id"], "--to", merged)
            assert done.returncode == 0, done.stderr
            yield Trained(
                up,
                supervised,
                reinforced,
                model,
                unpack(fetch_adapter(client, reinforced["id"], folder / "downloads")[0]),
                merged,
                evaluations(client, reinforced["id"]),
                [
                    row["reward"]
                    for row in client.get(f"{JOBS}/{reinforced['id']}/metrics", after_step=0)["data"]
                ],
            )


def test_the_second_job_starts_from_the_first_model(trained: Trained) -> None:
    name = trained.supervised["fine_tuned_model"]
    assert name.startswith("ft:tiny:default:")
    assert trained.reinforced["model"] == name
    assert [artifact["kind"] for artifact in trained.supervised["artifacts"]].count("model") == 1
    assert [artifact["kind"] for artifact in trained.reinforced["artifacts"]].count("adapter") == 1


def test_all_steps_have_metrics_and_both_evaluations_exist(trained: Trained) -> None:
    assert len(trained.rewards) == 6
    assert all(0 <= reward <= 1 for reward in trained.rewards)
    assert sorted(trained.evaluations) == [0, 6]
    assert trained.reinforced["eval"]["baseline"]["step"] == 0
    assert trained.reinforced["eval"]["last"]["step"] == 6


def test_the_downloaded_model_decodes_as_before_the_first_step(trained: Trained) -> None:
    found = greedy_tokens(trained.model, HELD_OUT, max_tokens=MAX_TOKENS)
    assert found == trained.evaluations[0]
    assert len({tuple(tokens) for tokens in found}) > 5


def test_the_downloaded_adapter_decodes_as_after_the_last_step(trained: Trained) -> None:
    found = greedy_tokens(trained.model, HELD_OUT, adapter=trained.adapter, max_tokens=MAX_TOKENS)
    assert found == trained.evaluations[6]


def test_the_merged_model_decodes_as_base_and_adapter(trained: Trained) -> None:
    found = greedy_tokens(trained.merged, HELD_OUT, max_tokens=MAX_TOKENS)
    assert found == trained.evaluations[6]


def test_the_card_names_the_base_model(trained: Trained) -> None:
    card = (trained.adapter / "README.md").read_text()
    assert f'base_model: "{trained.supervised["id"]}"' in card
    assert "--max-lora-rank 8" in card
    assert "library_name: transformers" in (trained.model / "README.md").read_text()


def test_the_reported_reward_is_the_adapter_s_accuracy(trained: Trained) -> None:
    texts = answers(trained.model, HELD_OUT, adapter=trained.adapter, max_tokens=MAX_TOKENS)
    assert trained.reinforced["eval"]["last"]["reward"] == pytest.approx(accuracy(texts, HELD_OUT))


def test_the_adapter_changed_something(trained: Trained) -> None:
    tensors = load_file(trained.adapter / "adapter_model.safetensors")
    assert tensors
    changed = [name for name, tensor in tensors.items() if "lora_B" in name and tensor.abs().max() > 0]
    assert len(changed) == sum("lora_B" in name for name in tensors)


def test_the_cost_of_a_job_matches_its_estimate(trained: Trained) -> None:
    for job in (trained.supervised, trained.reinforced):
        expected, actual = job["estimate"], job["actual"]
        assert actual["steps"] == expected["steps"] == job["progress"]["total_steps"]
        assert actual["computation"]["forward"] == "kernels"
        for name in ("sampled_tokens", "trained_tokens", "peak_memory_bytes"):
            assert expected[name]["low"] <= actual[name] <= expected[name]["high"], name


GUIDE = (ROOT / "docs" / "write-a-job" / "before-training.md").read_text()
SETUP, VALIDATE, PROBE = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)


def run_block(up: Up, block: str) -> str:
    """Output of the guide's commands, run in the repository with `grpo` on the path."""
    program = up.home / "bin" / "grpo"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m service.cli "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    environment = up.environment | {"GRPO_URL": up.url, "PATH": path}
    command = ["bash", "-c", f"set -eu\n{SETUP}{block}"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_guide_s_request_is_valid_and_gets_a_time_estimate(trained: Trained) -> None:
    found = json.loads(run_block(trained.up, VALIDATE))
    assert (found["valid"], found["problems"], found["total_steps"]) == (True, [], 5)
    assert found["estimate"]["completions"] == 5 * 8 * 8
    assert found["estimate"]["seconds"]["low"] < found["estimate"]["seconds"]["high"]
    basis = re.fullmatch(r"(\d+) earlier runs with this model on .*", found["estimate"]["basis"])
    assert basis is not None
    assert int(basis[1]) >= 2  # tests of this module may have made more


def test_the_guide_s_probe_finds_no_signal_in_a_random_model(trained: Trained) -> None:
    verdict = run_block(trained.up, PROBE)
    assert verdict.startswith("0 of 128 completions are right, and their text is close to random (")
    assert len(trained.up.json("list")) == 2, "a probe is not a job"
    assert trained.up.grpo("audit").returncode == 0
