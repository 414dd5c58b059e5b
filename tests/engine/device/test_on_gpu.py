"""The same jobs on a real GPU, and its kernels: run by `make gpu-check`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.contract.events import Finished, Probed
from grpo_engine.models.fast import fused, varlen
from tests.engine.device.jobs import KINDS, Run, job, run
from tests.engine.models.fast.test_attention import SHAPES, result, row_by_row, spans_of, states
from tests.engine.models.fast.test_fused import FORMULAS

pytestmark = pytest.mark.needs_gpu
Folder = Callable[[str], Path]
SAME_COMPLETIONS = 0.9
"""Least share: a draw near a boundary flips if logits differ in the last bits."""


def equal_completions(left: Run, right: Run) -> float:
    pairs = list(zip(left.tokens, right.tokens, strict=True))
    return sum(one == other for one, other in pairs) / max(1, len(pairs))


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_in_float32_samples_what_a_cpu_samples(model_folder: Folder, tmp_path: Path, kind: str) -> None:
    model = model_folder("qwen3")
    there = run(job(tmp_path, model, kind, device="cuda"), tmp_path / "there", is_real=True)
    here = run(job(tmp_path, model, kind, device="cpu"), tmp_path / "here")
    assert isinstance(there.events[-1], Finished | Probed)
    assert there.worst("sampling/sampling_logp_difference/max") < 1e-3 or kind == "one step ahead"
    assert equal_completions(there, here) >= SAME_COMPLETIONS or kind == "supervised"


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_in_bfloat16_trains_what_it_sampled(model_folder: Folder, tmp_path: Path, kind: str) -> None:
    config = job(tmp_path, model_folder("qwen3"), kind, device="cuda", dtype="bfloat16")
    found = run(config, tmp_path / "there", is_real=True)
    assert isinstance(found.events[-1], Finished | Probed)
    assert found.worst("sampling/sampling_logp_difference/mean") < 0.1


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_a_job_on_a_quantised_base_trains_what_it_sampled(
    model_folder: Folder, tmp_path: Path, kind: str
) -> None:
    model = model_folder("qwen3")
    config = job(tmp_path, model, "lora", device="cuda", dtype="bfloat16", quantization=kind)
    found = run(config, tmp_path / "there", is_real=True)
    assert isinstance(found.events[-1], Finished)
    assert found.worst("sampling/sampling_logp_difference/mean") < 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", SHAPES)
def test_the_kernel_for_sequences_of_any_length_attends_as_each_row_alone(
    name: str, dtype: torch.dtype
) -> None:
    device, spans = torch.device("cuda"), spans_of(SHAPES[name])
    exact = states(spans[-1].end, 2, 4, dim=64)
    value, gradients = result(row_by_row(spans), exact)
    given = tuple(each.detach().to(device, dtype).requires_grad_(True) for each in exact)
    found, found_gradients = result(varlen.VarlenLayout(spans, device), given)  # type: ignore[arg-type]
    for one, other in zip((found, *found_gradients), (value, *gradients), strict=True):
        assert float((one.double().cpu() - other).abs().max()) < 0.02 * float(other.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_compiled_for_a_gpu_gives_what_a_cpu_computes(name: str, dtype: torch.dtype) -> None:
    formula, arguments = FORMULAS[name]
    assert fused.has_compiler()
    for rows in (5, 9, 30):
        given = [at(dtype, each) for each in arguments(rows)]
        made = formula(*(each.cuda() if isinstance(each, torch.Tensor) else each for each in given))
        expected = formula(*given)
        torch.testing.assert_close(made, expected, rtol=0.02, atol=0.02, check_device=False)


def at(dtype: torch.dtype, value: Any) -> Any:
    is_real = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype) if is_real else value
