"""The GPU set on a CPU with a tiny shape: it runs whole, keeps its deadline and survives what fails."""

import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from bench.gpu import run as gpu
from bench.gpu.measure import measure_cells, random_groups
from bench.gpu.page import Ended, page_of, read_junit, shares
from bench.gpu.plan import FULL, QUICK, Cell, Part, parts_of
from bench.gpu.run import Runner
from bench.trl.flops import decode_bytes
from bench.trl.models import Shape
from bench.trl.side import Spec
from grpo_engine.objective.packing import pack
from tests.support.forking import client as forking
from tests.support.waiting import is_alive, running

NAMES = ["model-tiny", "train-tiny", "sample-tiny-torch"]
SIDES = ["steps-tiny-g4-ours", "steps-tiny-g4-trl"]
OTHERS = ["steps-tiny-in-turn", "steps-tiny-ahead", "train-tiny-nf4"]
OPTIONS = ("--quick", "--device", "cpu", "--deadline-seconds", "900")


def measured_here(command: list[str], log: Path, seconds: float) -> Ended:
    """A part in this process, which has imported everything; one with TRL is left to `make equivalence`."""
    if command[2] == "bench.trl.theirs":
        return Ended(True, "TRL is not measured")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command[2:])
        patch.delitem(sys.modules, command[2], raising=False)
        runpy.run_module(command[2], run_name="__main__")
    return Ended(True)


def test_a_quick_run_measures_every_part_and_its_figures_agree_with_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "page.json"
    monkeypatch.setattr(gpu, "run_in_group", measured_here)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})  # one thread, as in the engine's tests
    assert gpu.main([*OPTIONS, "--out", str(out)]) == 1
    page = json.loads(out.read_text())
    limits, parts = page["machine"]["figures"], page["parts"]
    assert {name: part["status"] for name, part in parts.items()} == {
        **dict.fromkeys([*NAMES, SIDES[0], *OTHERS], "done"),
        SIDES[1]: "failed",
        "sample-tiny-vllm": "not_run",
    }
    assert parts["model-tiny"]["figures"]["parameters"] > 0
    for part, sizes in (("train-tiny", QUICK.train), ("sample-tiny-torch", QUICK.sample)):
        for cell, entry in zip(sizes, parts[part]["cells"], strict=True):
            figures = entry["figures"]
            assert figures["tokens"] == (cell.tokens if part == "train-tiny" else cell.completion_tokens)
            assert figures["tokens_per_second"] == pytest.approx(figures["tokens"] / figures["seconds"])
            share = figures["flops"] / figures["seconds"] / limits["matrix_flops_per_second"]
            assert figures["share_of_matrix_rate"] == pytest.approx(share)
            assert share > 0
            assert figures["peak_memory_bytes"] > 0
    for entry, cell in zip(parts["train-tiny"]["cells"], QUICK.train, strict=True):
        assert entry["figures"]["activations_recomputed"] is cell.recompute
        assert entry["figures"]["grad_norm"] > 0
    assert parts[SIDES[0]]["figures"]["seconds_per_step"] > 0
    in_turn, ahead = (parts[name]["figures"]["seconds_per_step"] for name in OTHERS[:2])
    assert page["overlap"] == {"tiny": pytest.approx(ahead / in_turn)}
    quantized = parts["train-tiny-nf4"]["cells"][0]["figures"]
    assert quantized["grad_norm"] > 0


def test_the_page_names_each_failed_test_of_the_device(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text("def test_right(): pass\ndef test_wrong(): assert 1 == 2\n")
    report = tmp_path / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", "."]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 1
    found = read_junit(report)
    assert found["status"] == "failed"
    assert set(found["seconds_of"]) == {"test_two::test_right", "test_two::test_wrong"}
    assert found["failed"] == {"test_two::test_wrong": "assert 1 == 2"}


@pytest.mark.live_trl
def test_both_engines_do_the_same_work(tmp_path: Path) -> None:
    out = tmp_path / "page.json"
    assert gpu.main([*OPTIONS, "--parts", *SIDES, "--out", str(out)]) == 0
    page = json.loads(out.read_text())
    pair = page["against_trl"]["steps-tiny-g4"]
    assert pair["complaints"] == []
    seconds = [page["parts"][name]["figures"]["seconds_per_step"] for name in SIDES]
    assert pair["ratios"]["seconds_per_step"] == pytest.approx(seconds[0] / seconds[1])


def test_what_no_longer_fits_the_deadline_is_not_run_and_says_why(tmp_path: Path) -> None:
    out = tmp_path / "page.json"
    assert gpu.main(["--quick", "--device", "cpu", "--deadline-seconds", "1", "--out", str(out)]) == 0
    page = json.loads(out.read_text())
    assert page["machine"]["status"] == "not_run"
    assert page["parts"]["model-tiny"]["reason"].endswith("s left, and it may need 160 s")
    assert page["parts"]["train-tiny"] == {"status": "not_run", "reason": "model-tiny is missing"}


INTERPRETER = """#!/bin/sh
# runs `-m MODULE TASK OUTPUT`: a broken shape's part fails as Python would, all others are done
case $3 in *broken*) echo "RuntimeError: a negative size" >&2; exit 1;; esac
echo '{"figures": {}}' >"$4"
"""


def test_a_part_that_fails_is_recorded_and_the_others_go_on(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(INTERPRETER)
    interpreter.chmod(0o755)
    runner = Runner(tmp_path, QUICK, "cpu", str(interpreter))
    broken = Part("model-broken", "model", 30, "tiny", sampler="vllm")
    parts = [
        broken,
        Part("train-broken", "train", 30, "broken", sampler="vllm"),
        Part("machine", "machine", 30, sampler="vllm"),
    ]
    found = {part.name: result for part, result in gpu.measured(parts, runner, time.monotonic() + 900)}
    assert found["model-broken"]["status"] == "failed"
    assert found["model-broken"]["reason"] == "its process ended with 1: RuntimeError: a negative size"
    assert found["train-broken"] == {"status": "not_run", "reason": "model-broken is missing"}
    assert found["machine"]["status"] == "done"


def test_a_part_fails_that_exceeds_its_share_and_not_where_the_deadline_cuts_it(tmp_path: Path) -> None:
    runner = Runner(tmp_path, QUICK, "cpu", None)
    for share, status in ((0.2, "failed"), (30.0, "not_run")):
        result = runner.run(Part("machine", "machine", share), 0.2)
        assert result["status"] == status
        assert result["reason"].startswith("stopped after")
    assert not running(os.getpid(), "bench.gpu.measure")


@pytest.mark.slow
def test_a_terminated_run_keeps_what_it_has_and_leaves_no_process(tmp_path: Path) -> None:
    out = tmp_path / "page.json"
    reading, writing = os.pipe()
    with os.fdopen(reading) as printed:
        module = ["bench.gpu.run", *OPTIONS, "--out", str(out)]
        program = forking.start(module, os.environ, writing, own_session=True)
        os.close(writing)
        assert printed.readline().startswith("machine")
        while not (child := running(program.pid, "bench.gpu.measure")):
            assert program.poll() is None
            time.sleep(0.01)
        program.terminate()
        assert program.wait(60) == 143
    assert not any(is_alive(pid) for pid in child)
    assert json.loads(out.read_text())["machine"]["status"] == "done"


def test_a_cell_that_fails_or_no_longer_fits_costs_no_other_cell(tmp_path: Path) -> None:
    cells = [Cell(1, 1, 1, 1), Cell(1, 1, 1, 1), Cell(1, 1, 1, 10**9)]
    asked: list[Cell] = []

    def measure(cell: Cell, until: float) -> dict[str, Any]:
        asked.append(cell)
        if len(asked) == 1:
            raise torch.OutOfMemoryError("too large")
        return {"seconds": 1.0}

    output = tmp_path / "output.json"
    measure_cells(measure, cells, time.monotonic() + 60, output)
    failed, measured, skipped = json.loads(output.read_text())["cells"]
    assert failed == {"error": "OutOfMemoryError: too large"}
    assert measured["figures"]["seconds"] == 1.0
    assert skipped["not_run"].endswith("s left")
    assert len(asked) == 2


def test_the_shapes_have_the_sizes_of_the_published_models() -> None:
    parameters = {}
    for name, shape in FULL.shapes.items():
        config = shape.config()
        config.tie_word_embeddings = True
        with torch.device("meta"):
            parameters[name] = AutoModelForCausalLM.from_config(config).num_parameters()
    assert parameters == {"0.6b": 596_049_920, "4b": 4_022_468_096}


def test_training_cells_fill_rows_of_16384_completion_tokens() -> None:
    rows = {}
    for cell in FULL.train:
        groups = random_groups(cell, 512, seed=0)
        packed = list(pack(groups, cell.tokens_at_a_time, torch.device("cpu")))
        rows[cell.group_size, cell.length, cell.recompute] = [batch.input_ids.numel() for batch in packed]
    assert rows == {
        (1, 16_256, False): [16_384],
        (1, 16_256, True): [16_384],
        (8, 1024, False): [16_384 + 2 * 128],
        (16, 1024, False): [16_384 + 128],
        (8, 4096, False): [16_384 + 128] * 2,
        (16, 4096, False): [16_384 + 128] * 4,
    }


def test_parts_come_in_the_order_of_importance_and_each_after_what_it_needs() -> None:
    names = [part.name for part in parts_of(FULL, "torch")]
    assert names[:5] == ["machine", "device-tests", "service-tests", "model-0.6b", "train-0.6b"]
    assert names.index("steps-0.6b-g8-trl") < names.index("model-4b")
    assert len(set(names)) == len(names)
    for part in parts_of(FULL, "vllm"):
        assert not part.needs or names.index(part.needs) < names.index(part.name)


def test_shares_are_of_the_limits_that_are_known() -> None:
    figures = {"seconds": 2.0, "flops": 100.0, "bytes": 30.0}
    limits = {
        "nominal_flops_per_second": 200.0,
        "matrix_flops_per_second": 100.0,
        "copy_bytes_per_second": None,
    }
    assert shares(figures, limits) == {"mfu": 0.25, "share_of_matrix_rate": 0.5}


def test_decoding_reads_weights_once_a_step_and_prompts_once_a_group() -> None:
    config = Shape(hidden=8, layers=1, heads=2, kv=1, head=4, inter=16, vocab=10).config()
    weights = 2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16 + 10 * 8
    keys_and_values = 2 * 4 * 2
    sizes = Spec("", "", 3, 5, 7, 4, "fixed", 0, 1, 0, "bfloat16", "torch", "cpu", 1, 0, 1)
    seen = 3 * 7 + 3 * 5 * 2
    assert decode_bytes(config, sizes, 4, 2) == 4 * (2 * weights + keys_and_values * seen)


def test_ours_stands_beside_the_published_figures_of_the_same_sequence() -> None:
    def entry(recomputed: bool, speed: float) -> dict[str, Any]:
        figures = {"seconds": 1.0, "tokens_per_second": speed, "peak_memory_bytes": 5.15 * 2**30}
        return {"cell": {"group_size": 1}, "figures": {**figures, "activations_recomputed": recomputed}}

    other = {"cell": {"group_size": 8}, "figures": {"seconds": 1.0}}
    train = {"status": "done", "cells": [entry(False, 26_684), entry(True, 13_342), other]}
    page = page_of({}, [], {"machine": {"status": "failed"}, "train-0.6b": train})
    beside = page["against_prime_rl"]["0.6b"]
    assert beside["kept"]["tokens_per_second_ratio"] == 2.0
    assert beside["recomputed"]["tokens_per_second_ratio"] == 1.0
    assert beside["recomputed"]["peak_memory_ratio"] == pytest.approx(1.0)
