"""Attempts of one host never share a GPU, whatever process or thread they run in."""

import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from grpo_engine.config.job import Runtime
from grpo_engine.process.gpus import VISIBLE_DEVICES
from service.settings import Settings
from tests.worker.conftest import ROOT
from worker.launchers.gpu_reservation import HostGpus

HOLD = """
import sys
from pathlib import Path
from worker.launchers.gpu_reservation import HostGpus
with HostGpus(Path(sys.argv[1]), lambda: ("a", "b"), False).reserve() as gpus:
    gpus.keep(["a"])
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def host(tmp_path: Path) -> HostGpus:
    return HostGpus(tmp_path / "gpus", lambda: ("a", "b"), are_real=True)


def settings_with(tmp_path: Path, gpus: int, device: str = "auto") -> Settings:
    return Settings(home=tmp_path, gpus=gpus, runtime=Runtime(device=device))


def test_a_claim_sees_the_gpus_that_running_jobs_leave(host: HostGpus) -> None:
    with host.reserve() as first:
        assert first.names == ("a", "b")
        first.keep(["b"])
        with host.reserve() as second:
            assert second.names == ("a",)
            second.keep(second.names)
            with host.reserve() as third:
                assert third.names == ()
    with host.reserve() as after:
        assert after.names == ("a", "b")


def test_an_engine_sees_only_the_gpus_of_its_job(host: HostGpus) -> None:
    with host.reserve() as gpus:
        gpus.keep(["b"])
        assert gpus.environment == {VISIBLE_DEVICES: "b"}


def test_two_slots_never_choose_at_the_same_time(host: HostGpus) -> None:
    found: list[tuple[str, ...]] = []

    def choose() -> None:
        with host.reserve() as gpus:
            found.append(gpus.names)

    with host.reserve() as first:
        other = Thread(target=choose)
        other.start()
        other.join(0.2)
        assert found == []
        first.keep(["a"])
        other.join(30)
        assert found == [("b",)]


def test_the_gpus_of_a_killed_worker_are_free_at_once(host: HostGpus) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(host.folder)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with host.reserve() as gpus:
            assert gpus.names == ("b",)
        holder.kill()
        holder.wait()
    with host.reserve() as gpus:
        assert gpus.names == ("a", "b")


def test_a_machine_has_the_gpus_that_it_shows_or_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE_DEVICES, "GPU-1/0,GPU-2,GPU-3")
    assert HostGpus.of(settings_with(tmp_path, 2)).names == ("GPU-1/0", "GPU-2")
    with HostGpus.of(settings_with(tmp_path, 1)).reserve() as gpus:
        assert gpus.environment == {VISIBLE_DEVICES: "GPU-1/0"}
    declared = HostGpus.of(settings_with(tmp_path, 2, device="cpu"))
    with declared.reserve() as gpus:
        assert (gpus.names, gpus.environment) == (("declared-0", "declared-1"), {})


def test_a_worker_has_a_slot_for_each_gpu(tmp_path: Path) -> None:
    assert [settings_with(tmp_path, gpus).slots for gpus in (0, 1, 4)] == [1, 1, 4]


def test_a_machine_without_gpus_reserves_nothing(tmp_path: Path) -> None:
    with HostGpus.of(settings_with(tmp_path, 0)).reserve() as gpus:
        assert gpus.names == ()
    assert not (tmp_path / "gpus").exists()
