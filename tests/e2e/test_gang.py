"""A job on two devices through the whole service; two CPU processes replace the devices."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from examples.tiny_model import make_model
from service.cli.commands.download import fetch_adapter, unpack
from service.cli.commands.watch import watch_job
from service.cli.http.client import JOBS, Client
from tests.e2e.rollouts import evaluations
from tests.service.embedded import grpo_job, grpo_up, write_rows
from tests.support.servers import wait_until

pytestmark = pytest.mark.slow

TOLERANCE = 1e-6
RUNTIME = {"dtype": "float32", "num_threads": 2}


def job_on(gpus: int, file_id: str) -> dict[str, Any]:
    body = grpo_job(file_id, steps=3) | {"validation_file": file_id, "resources": {"gpus": gpus}}
    body["method"]["reinforcement"]["grader"] = {"type": "format", "pattern": "[0-9]", "match": "search"}
    body["method"]["reinforcement"]["hyperparameters"] |= {
        "learning_rate": 1e-4,
        "adam_epsilon": 1e-6,
        "max_completion_tokens": 8,
        "lora": {"rank": 4, "alpha": 8},
    }
    return body


def ranks_of(home: Path) -> set[bytes]:
    """Process ids of the ranks that work in this home."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(home.resolve()):
                found |= set((process / "environ").read_bytes().split(b"\0"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it has just ended, or belongs to another user
    return {variable for variable in found if variable.startswith(b"RANK=")}


def test_a_job_on_two_devices_makes_the_same_adapter_as_on_one(tmp_path: Path) -> None:
    make_model(tmp_path / "home" / "models" / "tiny", hidden=64, layers=2, seed=1)
    rows = write_rows(tmp_path / "rows.jsonl")
    deployment = {
        "GRPO_GPUS": "2",
        "GRPO_RUNTIME": json.dumps(RUNTIME),
        "GRPO_ENGINE_MODULE": "grpo_engine",
        "GRPO_WARM_ENGINE": "0",
    }
    adapters, samples = [], []
    with grpo_up(tmp_path / "home", **deployment) as up:
        key = Path(up.ready["key_file"]).read_text().strip()
        with Client(up.url, key) as client:
            file_id = client.upload(rows)["id"]
            for gpus in (1, 2):
                job_id = client.create(JOBS, job_on(gpus, file_id))["id"]
                if gpus == 2:
                    wait_until(lambda: len(ranks_of(up.home)) == 2, 60, "both ranks work")
                job = watch_job(client, job_id)
                assert job["status"] == "succeeded", job["failure"]
                assert job["resources"] == {"gpus": gpus}
                folder = unpack(fetch_adapter(client, job["id"], tmp_path / "downloads")[0])
                adapters.append(load_file(folder / "adapter_model.safetensors"))
                samples.append(evaluations(client, job["id"]))
    one, two = adapters
    assert samples[0] == samples[1]
    assert one.keys() == two.keys()
    assert any(bool(tensor.any()) for name, tensor in one.items() if "lora_B" in name)
    assert max(float((one[name] - two[name]).abs().max()) for name in one) <= TOLERANCE
