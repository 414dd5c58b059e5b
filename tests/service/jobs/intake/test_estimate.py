"""What a job will probably cost, of known rows, a known model and known past jobs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from examples.tiny_model import make_model
from grpo_engine.config.job import ModelSource, Runtime
from grpo_engine.models.loading import load_base
from service.jobs.intake.checks.method import check_lora_targets
from service.jobs.intake.costs import PastRun
from service.jobs.intake.estimate import estimate
from service.jobs.intake.model_size import Matrix, ModelShape, UnknownShape, model_shape, shape_of
from service.jobs.intake.report import Report
from service.jobs.intake.subject import RowTokens, Subject
from service.jobs.model.validation import Estimate, TokenRange
from tests.engine.families.catalogue import FAMILIES
from tests.engine.families.models import make_family
from tests.engine.families.stored import make_stored
from tests.engine.families.wrappers import make_wrapper
from tests.service.job_samples import METHOD, reinforcement

SHAPE = ModelShape(
    num_parameters=500_000_000,
    layers=24,
    hidden=1024,
    intermediate=4096,
    kv_width=128,
    vocabulary=150_000,
    matrices=tuple(Matrix(f"layers.{n}.q_proj.weight", 1024, 1024) for n in range(24)),
)
PAST = PastRun(
    model="base",
    machine="a machine",
    num_parameters=500_000_000,
    steps=10,
    sampled_tokens=100_000,
    sample_seconds=100.0,
    trained_tokens=100_000,
    train_seconds=50.0,
    other_seconds=30.0,
    mean_completion_tokens=100.0,
)


def grpo(**hyperparameters: Any) -> Any:
    given = {"group_size": 8, "prompts_per_step": 4, "max_completion_tokens": 256, **hyperparameters}
    return METHOD.validate_python(reinforcement(**given))


def subject(**more: Any) -> Subject:
    """100 steps of 4 prompts × 8 completions of at most 256 tokens."""
    usual = Subject("base", grpo(), 100, RowTokens(10, 80), SHAPE, on_gpu=False, runtime=Runtime())
    return replace(usual, **more)


def test_short_runs_do_not_widen_the_estimate_from_long_ones() -> None:
    start = replace(PAST, sampled_tokens=10, sample_seconds=2.0, trained_tokens=10, train_seconds=1.0)
    assert estimate(subject(), [start, PAST]).seconds == estimate(subject(), [PAST]).seconds
    assert estimate(subject(), [start]).seconds is not None


def ranges(found: Estimate) -> dict[str, tuple[float, float] | None]:
    names = ("sampled_tokens", "trained_tokens", "seconds")
    values = {name: getattr(found, name) for name in names}
    return {name: value and (value.low, value.high) for name, value in values.items()}


def test_without_earlier_runs_the_time_is_unknown_and_the_range_of_tokens_is_wide() -> None:
    found = estimate(subject(), [])
    assert (found.steps, found.completions) == (100, 3200)
    tokens = {"sampled_tokens": (3200 * 32, 3200 * 256), "trained_tokens": (3200 * 8, 3200 * 256)}
    assert ranges(found) == {**tokens, "seconds": None}
    assert any("The duration is unknown" in note for note in found.notes)
    assert any("a probe measures them" in note for note in found.notes)


def test_a_past_job_of_the_model_gives_time_and_lengths() -> None:
    found = estimate(subject(), [PAST])
    low, high = 3200 * 50, 3200 * 256
    seconds_low = low / 1500 + low / 4 / 3000 + 30 / 1.5
    seconds_high = high / (1000 / 1.5) + high / (2000 / 1.5) + 30 * 1.5
    assert ranges(found)["sampled_tokens"] == (low, high)
    assert ranges(found)["seconds"] == pytest.approx((seconds_low, seconds_high), abs=0.1)
    assert found.notes[-1] == "The range of the duration is from 1 earlier run with this model on a machine."


def test_the_likely_time_is_at_the_median_speed_and_length_and_names_its_basis() -> None:
    slow = replace(PAST, sample_seconds=200.0, steps=20, other_seconds=50.0, mean_completion_tokens=120.0)
    fast = replace(PAST, sample_seconds=50.0, mean_completion_tokens=80.0)
    found = estimate(subject(), [slow, PAST, fast])
    sampling, training = 3200 * 100 / 1000, 3200 * 100 / 2000
    assert found.likely_seconds == pytest.approx(sampling + training + 30)
    assert found.basis == "3 earlier runs with this model on a machine"
    twice = replace(slow, other_seconds=70.0), replace(PAST, steps=20, other_seconds=70.0)
    assert estimate(subject(), [PAST, *twice]).likely_seconds == pytest.approx(
        sampling + training + 30 + 100 * 2
    )


@pytest.mark.parametrize(
    "past",
    [
        [],
        [replace(PAST, model="other")],
        [replace(PAST, trained_tokens=0, train_seconds=0.0)],
    ],
)
def test_without_runs_of_the_model_that_trained_the_likely_time_is_unknown(past: list[PastRun]) -> None:
    found = estimate(subject(), past)
    assert (found.likely_seconds, found.basis) == (None, None)


def test_the_likely_time_of_a_supervised_job_is_that_of_its_targets() -> None:
    method = METHOD.validate_python(
        {"type": "supervised", "supervised": {"hyperparameters": {"batch_size": 4}}}
    )
    found = estimate(subject(method=method, rows=RowTokens(10, 80, targets=1000)), [PAST])
    assert found.likely_seconds == pytest.approx(100 * 4 * 100 / 2000 + 30)


def test_a_model_of_a_similar_size_gives_a_wider_duration_and_no_lengths() -> None:
    other = replace(PAST, model="other", num_parameters=250_000_000)
    found = estimate(subject(), [other])
    low, high = 3200 * 32, 3200 * 256
    rate = 1000 / 2  # half as large: half as fast here
    assert found.sampled_tokens.low == low
    assert found.seconds is not None
    assert found.seconds.low == pytest.approx(low / (rate * 3) + low / 4 / (2 * rate * 3) + 10, abs=0.1)
    assert found.seconds.high == pytest.approx(high / (rate / 3) + high / (2 * rate / 3) + 90, abs=0.1)


def test_a_model_of_another_size_gives_no_duration() -> None:
    assert estimate(subject(), [replace(PAST, model="other", num_parameters=7_000_000_000)]).seconds is None


def test_after_a_probe_alone_the_speed_of_training_is_called_a_guess() -> None:
    found = estimate(subject(), [replace(PAST, trained_tokens=0, train_seconds=0.0)])
    assert found.seconds is not None
    assert found.seconds.high == pytest.approx(3200 * 256 / (1000 / 1.5) * 4 + 45, abs=0.1)
    assert any("a guess" in note for note in found.notes)


def test_iterations_train_each_token_again() -> None:
    found = estimate(subject(method=grpo(num_iterations=3)), [])
    assert found.trained_tokens is not None
    assert found.trained_tokens.high == 3 * found.sampled_tokens.high


def test_supervised_tokens_are_those_of_the_targets() -> None:
    method = METHOD.validate_python(
        {"type": "supervised", "supervised": {"hyperparameters": {"batch_size": 4}}}
    )
    found = estimate(subject(method=method, rows=RowTokens(10, 80, targets=120)), [PAST])
    assert (found.completions, found.sampled_tokens.high) == (0, 0)
    assert found.trained_tokens is not None
    assert found.trained_tokens.low == found.trained_tokens.high == 100 * 4 * 12


def test_memory_holds_weights_adapter_cache_and_activations() -> None:
    found = estimate(subject(on_gpu=True), []).peak_memory_bytes
    held = 500_000_000 * 2 + 24 * 16 * 2048 * 16
    cache = 2 * 24 * 128 * 2 * (32 * 256 + 4 * 80)
    activations = 16_384 * 24 * (8 * 1024 + 3 * 4096) * 2
    assert found is not None
    assert activations > cache
    assert found.low == held
    assert found.high == round(1.4 * (held + activations + 1024 * 150_000 * 4))


@pytest.mark.parametrize(
    ("kind", "per_value"), [("nf4", 1 / 2 + 1 / 64 + 4 / 64 / 256), ("int8", 1 + 4 / 1024)]
)
def test_a_quantised_base_keeps_embeddings_and_norms_in_16_bits(kind: str, per_value: float) -> None:
    found = estimate(subject(method=grpo(quantization=kind), on_gpu=True), []).peak_memory_bytes
    linear = 24 * 1024 * 1024
    adapter = 24 * 16 * 2048 * 16
    assert found is not None
    assert found.low == (500_000_000 - linear) * 2 + linear * per_value + adapter


def test_all_weights_take_optimizer_states_and_the_reference_a_copy() -> None:
    without = estimate(subject(method=grpo(lora="full", beta=0.0), on_gpu=True), []).peak_memory_bytes
    with_reference = estimate(subject(method=grpo(lora="full", beta=0.1), on_gpu=True), []).peak_memory_bytes
    assert without is not None
    assert with_reference is not None
    assert without.low == 500_000_000 * 16
    assert with_reference.low - without.low == 500_000_000 * 4


@pytest.mark.parametrize(("lora", "width"), [("full", 4), (None, 2)])
def test_sharded_ranks_divide_what_is_held_and_gather_the_model_to_sample(lora: Any, width: int) -> None:
    def memory(ranks: int) -> TokenRange:
        runtime = Runtime(ranks=ranks, sharding="fsdp", sampler="torch", token_budget=16)  # type: ignore[call-arg]
        shape = replace(SHAPE, num_parameters=26_000_000)
        job = subject(method=grpo(lora=lora, beta=0.0), shape=shape, on_gpu=True, runtime=runtime)
        found = estimate(job, []).peak_memory_bytes
        assert found is not None
        return found

    alone, shared = memory(1), memory(8)
    assert shared.low == alone.low // 8
    assert shared.high - alone.high == pytest.approx(1.4 * (26_000_000 * width - alone.low * 7 / 8), rel=1e-6)


def test_sharded_training_gathers_layers_and_what_is_outside_of_them() -> None:
    method = METHOD.validate_python({"type": "supervised", "supervised": {}})
    runtime = Runtime(ranks=2, sharding="fsdp", token_budget=16)  # type: ignore[call-arg]
    found = estimate(subject(method=method, on_gpu=True, runtime=runtime), []).peak_memory_bytes
    inside = 24 * 1024 * 1024
    working = 16 * 24 * (8 * 1024 + 3 * 4096) * 2 + (500_000_000 - inside + 2 * 1024 * 1024) * 2
    assert found is not None
    assert found.high == round(1.4 * (found.low + working + 1024 * 150_000 * 4))


def test_a_model_on_another_machine_has_no_memory_estimate_but_a_note() -> None:
    found = estimate(subject(shape=None), [])
    assert found.peak_memory_bytes is None
    assert any("size is unknown" in note for note in found.notes)


def test_the_shape_of_a_real_folder(tmp_path: Path) -> None:
    make_model(tmp_path, hidden=64, layers=2, seed=1)
    shape = model_shape(tmp_path)
    total = (tmp_path / "model.safetensors").stat().st_size / 4
    assert (shape.layers, shape.hidden) == (2, 64)
    assert total * 0.95 < shape.num_parameters < total
    assert len(shape.matrices) == 14
    assert shape.adapter_parameters(4, ("q_proj",)) < shape.adapter_parameters(4, "all-linear")


def test_a_size_that_differs_between_layers_counts_as_the_largest() -> None:
    config = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 2, "vocab_size": 9}
    tensors = {"layers.0.mlp.up_proj.weight": (16, 8)}
    assert shape_of({**config, "intermediate_size": [16, 32]}, tensors).intermediate == 32
    with pytest.raises(ValueError, match="'wide' is not a size"):
        shape_of({**config, "intermediate_size": "wide"}, tensors)


def test_targets_that_name_no_layer_are_refused_with_the_names_that_exist(tmp_path: Path) -> None:
    make_model(tmp_path, hidden=64, layers=2, seed=1)
    shape = model_shape(tmp_path)
    for targets, missing in (
        (("q_proj", "self_attn.v_proj", "embed_tokens"), None),
        (("q_proj", "query", "proj"), "query, proj"),
        (("q_proj", "q_norm", "norm"), "q_norm, norm"),  # their weights are vectors
    ):
        report = Report(grpo(lora={"target_modules": targets}))
        check_lora_targets(report, shape)
        names = "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
        where = "method.reinforcement.hyperparameters.lora.target_modules"
        message = f"{where}: the model has no linear layer {missing}: its linear layers are {names}"
        assert [each.message for each in report.problems.found] == ([message] if missing else [])


@pytest.mark.parametrize("family", ["mixtral", "qwen3-moe", "gpt-oss"])
def test_targets_may_name_experts_that_are_stacked_when_they_are_loaded(family: str, tmp_path: Path) -> None:
    shape = model_shape(make_family(tmp_path, FAMILIES[family]))
    targets = ("mlp.experts.down_proj", "experts.gate_up_proj", "experts.in_proj")
    assert shape.unmatched(targets) == ["experts.in_proj"]


@pytest.mark.parametrize("family", ["gpt-oss", "qwen3-moe"])
def test_quantised_files_count_as_the_weights_that_they_stand_for(family: str, tmp_path: Path) -> None:
    folder, _ = make_stored(tmp_path / "base", family)
    shape = model_shape(folder)
    assert shape.num_parameters == AutoModelForCausalLM.from_pretrained(folder).num_parameters()
    assert not [name for name in shape.layer_names if "scale" in name or name.endswith("bias")]


@pytest.mark.parametrize("kind", ["Gemma3Config", "Mistral3Config", "Qwen3_5Config"])
def test_only_the_language_model_inside_another_counts(kind: str, tmp_path: Path) -> None:
    source = ModelSource(name="seeing", path=str(make_wrapper(tmp_path, kind)))
    language = load_base(source, torch.float32).model
    shape = model_shape(tmp_path)
    assert shape.num_parameters == language.num_parameters()
    assert not [name for name in shape.modules if "vision" in name or "visual" in name]


@pytest.mark.parametrize("header", [b"", b"\xff" * 16, b"\x02\0\0\0\0\0\0\0{}"])
def test_a_folder_with_a_broken_file_has_no_shape(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    (tmp_path / "model.safetensors").write_bytes(header)
    with pytest.raises(UnknownShape):
        model_shape(tmp_path)
