"""Which GPUs a process may use. A small program in the place of `nvidia-smi` is the driver."""

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_engine.process.gpus import count_visible_gpus, smallest_memory_gb, visible_gpus

FIRST, SECOND = "GPU-11111111-aaaa-bbbb-cccc-000000000001", "GPU-22222222-aaaa-bbbb-cccc-000000000002"
DriverLists = Callable[[str], None]


@pytest.fixture
def driver_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DriverLists:
    """Puts a `nvidia-smi` with this output on the path."""

    def put(output: str) -> None:
        program = tmp_path / "bin" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")

    return put


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """The device files of a container with the third and the sixth card of its host."""
    for name in ("nvidia5", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


def test_gpus_are_named_by_the_uuids_that_the_driver_lists(devices: Path, driver_lists: DriverLists) -> None:
    driver_lists(f"{FIRST}, 81559\n{SECOND}, 24564")
    assert count_visible_gpus({}, devices) == 2
    assert visible_gpus({}, devices) == [FIRST, SECOND]


def test_without_a_list_gpus_have_the_numbers_that_cuda_counts(
    devices: Path, driver_lists: DriverLists
) -> None:
    driver_lists("Failed to initialize NVML: Driver/library version mismatch")
    assert visible_gpus({}, devices) == ["0", "1"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", ["0"]),
        ("3, 1", ["3", "1"]),
        ("GPU-8a3f,MIG-1b2c", ["GPU-8a3f", "MIG-1b2c"]),
        ("", []),
        ("-1", []),
        ("0,-1,2", ["0"]),
    ],
)
def test_the_variable_lists_the_gpus(devices: Path, value: str, expected: list[str]) -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": value}, devices) == expected
    assert count_visible_gpus({"CUDA_VISIBLE_DEVICES": value}, devices) == len(expected)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 25),
        ({"CUDA_VISIBLE_DEVICES": "0"}, 85),
        ({"CUDA_VISIBLE_DEVICES": "GPU-2222"}, 25),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1b2c"}, 0),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
    ],
)
def test_the_smallest_visible_gpu_counts(
    driver_lists: DriverLists, environment: dict[str, str], expected: int
) -> None:
    driver_lists(f"{FIRST}, 81559\n{SECOND}, 24564")
    assert smallest_memory_gb(environment) == expected
