"""Ranks that would start from different states end at once, with the reason."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.errors import RanksDisagreeError
from grpo_engine.parallel.agreement import checksum_of, compare
from tests.engine.conftest import cut
from tests.engine.processes import crash_here, events
from tests.support.forking.client import engine_python


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def start_rank(rank: int, port: int, config: Path, run_dir: Path) -> subprocess.Popen[bytes]:
    """One of two ranks in a run directory of its own, as on another host."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_PORT": port}
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    environment |= {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in numbers.items()}}
    command = [engine_python(), "-m", "grpo_engine", "--config", config, "--run-dir", run_dir]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("sharding", ["replicated", "fsdp"])
def test_ranks_that_resume_at_different_steps_end_before_the_first_step(
    make_config: Callable[..., RunConfig], tmp_path: Path, sharding: str
) -> None:
    config, here, there = make_config(n_steps=9, checkpoint_interval=1), tmp_path / "here", tmp_path / "there"
    crash_here(config, here, after=3)
    step = Path("checkpoints") / "step-00000001"
    shutil.copytree(here / step, there / step)
    path = tmp_path / "config.json"
    path.write_text(cut(config, ranks=2, device="cpu", sharding=sharding).model_dump_json())
    port, num_before = free_port(), len(events(here))
    ranks = [start_rank(rank, port, path, folder) for rank, folder in enumerate((here, there))]
    assert [rank.wait(30) for rank in ranks] == [1, 1]
    *before, failed = events(here)[num_before:]
    assert [event["type"] for event in before] == ["phase"]
    assert (failed["type"], failed["code"]) == ("failed", "ranks_disagree")
    assert failed["message"].startswith("The ranks start with different values of step, checkpoint")
    assert [line.partition(",")[0] for line in failed["evidence"]] == ["rank 0: step 2", "rank 1: step 1"]


def test_a_rank_that_waits_for_one_with_an_error_ends_without_a_failure_of_its_own(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    port, config = free_port(), cut(make_config(), ranks=2, device="cpu")
    (tmp_path / "wrong.jsonl").write_text("{}\n")
    configs = [config, config.model_copy(update={"training_file": str(tmp_path / "wrong.jsonl")})]
    ranks = []
    for rank, given in enumerate(configs):
        path = tmp_path / f"config-{rank}.json"
        path.write_text(given.model_dump_json())
        ranks.append(start_rank(rank, port, path, tmp_path / str(rank)))
    assert [rank.wait(30) for rank in ranks] == [1, 1]
    assert [event["type"] for event in events(tmp_path / "0")] == ["phase"]
    report = json.loads((tmp_path / "1" / "failed-rank-1.json").read_text())
    assert (report["code"], report["message"]) == ("engine_error", "KeyError: 'prompt'")


def test_a_fact_that_differs_is_named_with_the_value_of_each_rank() -> None:
    compare([{"step": 4, "weights": "a"}] * 3)
    with pytest.raises(RanksDisagreeError) as raised:
        compare([{"step": 4, "weights": "a"}, {"step": 4, "weights": "b"}])
    assert raised.value.message == (
        "The ranks start with different values of weights: rank 0: weights a; rank 1: weights b"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_checksum_changes_with_the_last_bit_of_a_weight(dtype: torch.dtype) -> None:
    weights = torch.linspace(-1, 1, 999).to(dtype)
    changed = weights.clone()
    changed[500] = torch.nextafter(changed[500], torch.tensor(9.0, dtype=dtype))
    assert checksum_of({"w": weights}) == checksum_of({"w": weights.clone()})
    assert checksum_of({"w": weights}) != checksum_of({"w": changed})
