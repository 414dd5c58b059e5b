"""Whole jobs on the pretended device: they do what a GPU allows, seldom wait for it, and learn the same."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.device.jobs import KINDS, job, largest_difference, run

Folder = Callable[[str], Path]
TOKENS_PER_WAIT = 8
CHOICES_OF_ROWS = {"process", "dynamic sampling", "stop strings", "probe"}
"""The kinds that differ in how rows are drawn and scored, but not in their passes through the model."""
WAITS_OF_A_STEP = 8
"""Waits of two inner iterations, whatever the number of micro-batches: a step here has at least three."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_keeps_the_devices_rules_and_learns_what_it_learns_on_a_cpu(
    model_folder: Folder, tmp_path: Path, kind: str
) -> None:
    model = model_folder("qwen3")
    there = run(job(tmp_path, model, kind, device="cuda"), tmp_path / "there")
    here = run(job(tmp_path, model, kind, device="cpu"), tmp_path / "here")
    assert there.seen.violations() == {}
    assert there.waits_while_sampling <= there.turns / TOKENS_PER_WAIT
    assert there.waits_while_training <= WAITS_OF_A_STEP * (there.steps + 1)  # the probe of memory is one
    assert there.worst("sampling/sampling_logp_difference/max") < 1e-5 or kind == "one step ahead"
    assert there.tokens == here.tokens
    assert largest_difference(there, here) < 5e-5


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in CHOICES_OF_ROWS])
def test_a_job_in_bfloat16_keeps_the_devices_rules_and_trains_what_it_sampled(
    model_folder: Folder, tmp_path: Path, kind: str
) -> None:
    config = job(tmp_path, model_folder("qwen3"), kind, device="cuda", dtype="bfloat16")
    found = run(config, tmp_path / "there")
    assert found.seen.violations() == {}
    assert found.waits_while_sampling <= found.turns / TOKENS_PER_WAIT
    assert found.worst("sampling/sampling_logp_difference/max") < 0.2
