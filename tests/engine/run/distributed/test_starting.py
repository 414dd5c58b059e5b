"""How ranks start and stop: with the variables of torchrun, at the same step."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import DistError

from grpo_engine.__main__ import StopRequest, run
from grpo_engine.config.job import RunConfig, Runtime
from grpo_engine.contract.errors import MachineError
from grpo_engine.contract.events import Failed, PhaseChanged
from grpo_engine.run import rank_setup
from grpo_engine.run.rank_log import open_log
from grpo_engine.run.rank_setup import part_of_host
from tests.engine.conftest import cut
from tests.engine.processes import events, last_step, run_here, wait_for_step
from tests.engine.ranks import engine_ranks
from tests.ports import free_port
from tests.support.forking.client import engine_python

ROOT = Path(__file__).parents[4]


def test_a_job_of_several_ranks_that_is_started_alone_fails_with_the_way_to_start_it(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    assert run(cut(make_config(), ranks=3), tmp_path, lambda: False) == 1
    failed = events(tmp_path)[-1]
    assert (failed["type"], failed["code"]) == ("failed", "config_invalid")
    assert failed["message"] == "runtime.ranks is 3, but this process was started alone"
    assert "torchrun --nproc-per-node 3 -m grpo_engine" in failed["hint"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_another_number_of_ranks_than_the_configuration_s_is_refused(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert run(cut(make_config(), ranks=ranks), tmp_path, lambda: False) == 1
    failed = json.loads((tmp_path / "failed-rank-1.json").read_text())
    assert (failed["code"], failed["message"]) == (
        "config_invalid",
        f"runtime.ranks is {ranks}, but WORLD_SIZE is 2",
    )
    assert not (tmp_path / "events.jsonl").exists()


def test_a_training_free_job_as_ranks_fails_with_the_reason(
    make_job: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(cut(make_job(), ranks=2), tmp_path, lambda: False) == 1
    failed = events(tmp_path)[-1]
    assert (failed["type"], failed["code"]) == ("failed", "config_invalid")
    assert failed["message"].startswith("runtime.ranks:")


def test_a_later_rank_stores_its_failure_only_and_clears_that_of_an_earlier_run(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "2")
    log = open_log(make_config(), tmp_path)
    log.write(PhaseChanged(phase="loading"))
    assert not list(tmp_path.glob("failed-*"))
    log.write(Failed(code="spend_limit", message="enough"))
    assert Failed.model_validate_json((tmp_path / "failed-rank-2.json").read_bytes()).message == "enough"
    open_log(make_config(), tmp_path)
    assert not list(tmp_path.glob("*.json"))


def test_threads_and_grading_processes_are_divided_among_the_ranks_of_one_host() -> None:
    runtime = Runtime(num_threads=32, grader_processes=8, ranks=16)  # type: ignore[call-arg]
    part = part_of_host(runtime, {"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4"})
    assert (part.num_threads, part.grader_processes) == (8, 2)
    crowded = part_of_host(runtime, {"WORLD_SIZE": "16"})
    assert (crowded.num_threads, crowded.grader_processes) == (2, 1)


def test_a_rank_that_does_not_see_its_gpu_ends_with_the_reason(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8a")
    with pytest.raises(
        MachineError, match=r"sees none of this machine's 1 GPUs \(CUDA_VISIBLE_DEVICES=GPU-8a"
    ):
        run(make_config(), tmp_path, lambda: False)
    assert "started" not in [event["type"] for event in events(tmp_path)]


@pytest.fixture
def _own_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_own_handlers")
def test_a_request_to_stop_that_came_while_the_engine_was_starting_is_not_lost() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))  # as a launcher starts it
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
    assert StopRequest()()


@pytest.mark.slow
def test_ranks_continue_from_a_checkpoint_and_stop_with_another(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config(n_steps=500, checkpoint_interval=500)
    run_here(config, tmp_path, lambda: last_step(tmp_path) == 1)
    (tmp_path / "config.json").write_text(cut(config, ranks=2, device="cpu").model_dump_json())
    with engine_ranks([tmp_path, tmp_path]) as ranks:
        wait_for_step(tmp_path, 2)
        ranks.processes[1].terminate()  # one is enough: all stop after the same step
        assert ranks.wait() == [0, 0]
    *_, saved, stopped = events(tmp_path)
    assert (saved["type"], stopped["type"], stopped["reason"]) == ("checkpoint_saved", "stopped", "asked")
    assert 1 < saved["step"] == stopped["step"] < 500
    sealed = tmp_path / saved["path"] / "manifest.json"
    assert json.loads(sealed.read_text())["step"] == saved["step"]
    started = [event for event in events(tmp_path) if event["type"] == "started"]
    assert [event["resumed_from_step"] for event in started] == [0, 1]


def test_a_rank_that_the_others_do_not_reach_ends_like_a_crash_with_their_number(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(rank_setup, "JOIN_TIMEOUT", timedelta(seconds=1))
    with pytest.raises(DistError, match="1/2 clients joined"):
        run(cut(make_config(), ranks=2, device="cpu"), tmp_path, lambda: False)
    assert [event["type"] for event in events(tmp_path)] == ["phase"]


@pytest.mark.slow
def test_a_rank_whose_peer_is_killed_ends_like_a_crash_so_that_the_job_is_tried_again(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config(n_steps=500, checkpoint_interval=500)
    (tmp_path / "config.json").write_text(cut(config, ranks=2, device="cpu").model_dump_json())
    with engine_ranks([tmp_path, tmp_path]) as ranks:
        wait_for_step(tmp_path, 2)
        ranks.processes[1].kill()
        assert ranks.wait() == [1, -signal.SIGKILL]
    assert "failed" not in [event["type"] for event in events(tmp_path)]


@pytest.mark.slow
def test_torchrun_starts_the_ranks_of_a_job(make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(cut(make_config(n_steps=1), ranks=2, device="cpu").model_dump_json())
    python = engine_python()
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
    subprocess.run(
        [*torchrun, python, "-m", "grpo_engine", "--config", config, "--run-dir", tmp_path / "run"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        check=True,
    )
    finished = events(tmp_path / "run")[-1]
    assert (finished["type"], finished["step"]) == ("finished", 1)
