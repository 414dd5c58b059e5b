"""A gang is started, stopped and ended as one process would be."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_engine.__main__ import run
from grpo_engine.config.job import RunConfig, Runtime
from grpo_engine.contract.errors import MachineError
from grpo_engine.run.rank_launcher import rank_environments
from tests.engine.conftest import cut
from tests.engine.processes import events, last_step, run_here, wait_for_step
from tests.engine.processes import start as start_engine
from tests.engine.run.distributed.fake_ranks import MODULE
from tests.support.servers import wait_until

ROOT = Path(__file__).parents[4]
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a gang of fake ranks, each with its deed; none is left at the end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*deeds: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", MODULE, str(tmp_path), *deeds]
        started.append(subprocess.Popen(command, cwd=ROOT, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def pids(run_dir: Path, ranks: int = 2) -> list[int]:
    """Process ids of the ranks, once they run."""
    files = [run_dir / f"pid-{rank}" for rank in range(ranks)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files), 30, "ranks never came")
    return [int(file.read_text()) for file in files]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("deeds", "status"),
    [
        (("end:3", "end:0"), 3),
        (("hang", "die:9"), -signal.SIGKILL),
        (("end:1", "die:11"), -signal.SIGSEGV),
        (("hang", "end:0"), 0),
    ],
)
def test_the_gang_ends_as_its_ranks_did_and_leaves_none_behind(
    start: Start, tmp_path: Path, deeds: tuple[str, ...], status: int
) -> None:
    process = start(*deeds)
    assert process.wait(60) == status
    assert not any(map(is_alive, pids(tmp_path)))


def test_the_failure_of_a_later_rank_alone_is_reported(start: Start, tmp_path: Path) -> None:
    assert start("hang", "fail").wait(60) == 1
    (event,) = events(tmp_path)
    assert (event["type"], event["code"], event["message"]) == ("failed", "spend_limit", "enough")


def test_a_failure_of_all_ranks_is_reported_once(start: Start, tmp_path: Path) -> None:
    assert start("fail", "fail", "fail").wait(60) == 1
    assert [event["type"] for event in events(tmp_path)] == ["failed"]


def test_a_request_to_stop_reaches_ranks_that_run_and_that_start(start: Start, tmp_path: Path) -> None:
    process = start("stop", "late")
    wait_until(lambda: (tmp_path / "deaf-1").exists(), 30, "the rank never came")
    process.terminate()
    (tmp_path / "listen").touch()
    assert process.wait(60) == 0


def test_ranks_die_with_their_launcher(start: Start, tmp_path: Path) -> None:
    process = start("hang", "hang")
    ranks = pids(tmp_path)
    process.kill()
    process.wait()
    wait_until(lambda: not any(map(is_alive, ranks)), 30, "a rank outlived its launcher")


def test_each_rank_gets_one_of_the_visible_gpus() -> None:
    found = rank_environments({"CUDA_VISIBLE_DEVICES": "3,GPU-8a,5"}, Runtime(ranks=2))  # type: ignore[call-arg]
    assert [rank["CUDA_VISIBLE_DEVICES"] for rank in found] == ["3", "GPU-8a"]
    assert [(rank["RANK"], rank["LOCAL_RANK"]) for rank in found] == [("0", "0"), ("1", "0")]
    assert {rank["WORLD_SIZE"] for rank in found} == {"2"}
    assert len({rank["MASTER_PORT"] for rank in found}) == 1


def test_ranks_that_outnumber_the_gpus_are_refused() -> None:
    with pytest.raises(MachineError, match="3 ranks need 3 GPUs, but this machine has 2"):
        rank_environments({"CUDA_VISIBLE_DEVICES": "0,1"}, Runtime(ranks=3))  # type: ignore[call-arg]


def test_a_rank_that_does_not_see_its_gpu_ends_with_the_reason(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8a")
    with pytest.raises(
        MachineError, match=r"sees none of this machine's 1 GPUs \(CUDA_VISIBLE_DEVICES=GPU-8a"
    ):
        run(make_config(), tmp_path, lambda: False)
    assert "started" not in [event["type"] for event in events(tmp_path)]


def test_ranks_on_the_cpu_get_none() -> None:
    runtime = Runtime(ranks=2, device="cpu")  # type: ignore[call-arg]
    found = rank_environments({"CUDA_VISIBLE_DEVICES": "0,1"}, runtime)
    assert [rank["CUDA_VISIBLE_DEVICES"] for rank in found] == ["0,1", "0,1"]


@pytest.mark.slow
def test_ranks_continue_from_a_checkpoint_and_stop_with_another(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config(n_steps=500, checkpoint_interval=500)
    run_here(config, tmp_path, lambda: last_step(tmp_path) == 1)
    path = tmp_path / "config.json"
    path.write_text(cut(config, ranks=2, device="cpu").model_dump_json())

    process = start_engine(path, tmp_path)
    wait_for_step(tmp_path, 2)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 2
    process.terminate()
    assert process.wait(60) == 0
    *_, saved, stopped = events(tmp_path)
    assert (saved["type"], stopped["type"], stopped["reason"]) == ("checkpoint_saved", "stopped", "asked")
    assert 1 < saved["step"] == stopped["step"] < 500
    sealed = tmp_path / saved["path"] / "manifest.json"
    assert json.loads(sealed.read_text())["step"] == saved["step"]
    started = [event for event in events(tmp_path) if event["type"] == "started"]
    assert [event["resumed_from_step"] for event in started] == [0, 1]
    assert not any(is_alive(int(child)) for child in children)


def test_a_training_free_job_as_ranks_fails_with_the_reason(
    make_job: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(make_job(), tmp_path, lambda: False) == 1
    failed = events(tmp_path)[-1]
    assert (failed["type"], failed["code"]) == ("failed", "config_invalid")
    assert failed["message"].startswith("runtime.ranks:")
