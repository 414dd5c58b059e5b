"""A trainer on vLLM: its mismatch is corrected, runs resume exactly, the process stays as it was."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import RunConfig, Runtime
from grpo_engine.contract.errors import ConfigError
from grpo_engine.contract.events import StepFinished
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.sampler.vllm.engine import VllmCompletion, vllm_environment
from grpo_engine.rollout.sampler.vllm.sampler import VllmSampler
from grpo_engine.run.build import build_loop
from grpo_engine.training.loop import TrainingLoop
from grpo_engine.training.trainer import Trainer
from tests.engine.conftest import cut, largest_difference, parameters_of
from tests.engine.vllm.conftest import KEPT


def open_loop(config: RunConfig, run_dir: Path) -> TrainingLoop[Trainer]:
    loop = build_loop(cut(config, sampler="vllm", sample_budget=32), run_dir)
    KEPT.append(loop)
    return loop


def first_step(loop: TrainingLoop[Trainer]) -> dict[str, float]:
    (finished,) = [event for event in loop.method.step(1) if isinstance(event, StepFinished)]
    return finished.metrics


def off_by(monkeypatch: pytest.MonkeyPatch, nats: float) -> None:
    """From now on vLLM drew each token with a log-probability that differs from the trainer's by this."""
    completion = VllmSampler._completion

    def shifted(self: VllmSampler, answer: VllmCompletion) -> Any:
        return completion(self, replace(answer, logprobs=tuple(each - nats for each in answer.logprobs)))

    monkeypatch.setattr(VllmSampler, "_completion", shifted)


def test_completions_that_another_policy_sampled_move_nothing_and_show_in_the_metrics(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(beta=0.0, max_completion_tokens=8)
    honest = first_step(open_loop(config, tmp_path / "honest"))
    assert honest["grad_norm"] > 1e-4
    assert honest["sampling/sampling_logp_difference/max"] < 1e-5
    off_by(monkeypatch, 2.0)
    off = open_loop(config, tmp_path / "off")
    before = parameters_of(off.method)
    wrong = first_step(off)
    assert wrong["sampling/sampling_logp_difference/mean"] == pytest.approx(2.0, abs=1e-4)
    assert wrong["sampling/importance_sampling_ratio/mean"] == pytest.approx(7.389, abs=1e-2)
    assert wrong["grad_norm"] == 0.0
    assert largest_difference(before, parameters_of(off.method)) == 0.0


def test_a_small_mismatch_weighs_each_completion_by_its_ratio(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(beta=0.0, max_completion_tokens=1, group_size=16)
    honest = first_step(open_loop(config, tmp_path / "honest"))
    off_by(monkeypatch, 0.5)
    weighed = first_step(open_loop(config, tmp_path / "off"))
    assert weighed["grad_norm"] / honest["grad_norm"] == pytest.approx(1.6487, abs=1e-2)


def test_a_stopped_run_continues_as_if_uninterrupted(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    config = make_config(n_steps=4)
    whole = open_loop(config, tmp_path / "whole")
    list(whole.run(lambda: False))
    stopped = open_loop(config, tmp_path / "parts")
    list(stopped.run(lambda: stopped.state.step == 2))
    resumed = open_loop(config, tmp_path / "parts")
    list(resumed.run(lambda: False))
    assert resumed.state.step == 4
    assert largest_difference(parameters_of(whole.method), parameters_of(resumed.method)) == 0.0


def test_vllm_leaves_the_process_as_it_was(
    make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    policy = make_policy()
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    torch.manual_seed(5)
    KEPT.append(VllmSampler(policy, Runtime(sample_budget=8), 64, tmp_path))
    assert {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")} == environment
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers
    drawn = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(drawn, torch.rand(3))
    assert torch.get_num_threads() == 1
    torch.set_num_threads(2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_changes_of_a_failed_start_are_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_TEST_KEPT", "1")
    monkeypatch.delenv("LD_PRELOAD", raising=False)

    @vllm_environment()
    def fail() -> None:
        os.environ["LD_PRELOAD"] = "something"
        os.environ["GRPO_TEST_KEPT"] = "2"
        raise ValueError("no model")

    with pytest.raises(ValueError, match="no model"):
        fail()
    assert "LD_PRELOAD" not in os.environ
    assert os.environ["GRPO_TEST_KEPT"] == "1"


def test_a_job_that_vllm_cannot_serve_fails_as_its_configuration(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="vLLM does not support adapters for GPT2LMHeadModel") as caught:
        open_loop(make_config(family="gpt2"), tmp_path)
    assert caught.value.hint == "Set runtime.sampler to torch for this job."
