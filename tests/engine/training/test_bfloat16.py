"""Whole jobs in bfloat16 on a model whose logits are as large as a trained one's, by every method."""

import math
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import Computation, Finished, Started, StepFinished, Warned
from grpo_engine.models.fast import model as fast_model
from grpo_engine.run.build import build_loop
from tests.engine.conftest import largest_difference, parameters_of, write_rows
from tests.engine.realistic import write_model
from tests.engine.rollout.tools.test_training import CallsAfterwards
from tests.support.chat_server import ScriptedServer

LONG = 100
"""Tokens of a long prompt; one character is one token."""
ALIKE = {
    "type": "text_similarity",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
    "evaluation_metric": "fuzzy_match",
}
SHORT = {"type": "length", "mode": "linear", "unit": "characters", "target": 0, "maximum": 9}
STEPS = {"type": "process", "splitter": "[a-mA-M]", "grader": SHORT}
FULL = {"lora": "full", "learning_rate": 1e-4}
METHODS: dict[str, dict[str, Any]] = {
    "adapter": {},
    "adapter with dropout": {"lora": {"rank": 4, "dropout": 0.1}},
    "full": FULL,
    "full, beta": {**FULL, "beta": 0.1},
    "full, two iterations": {**FULL, "num_iterations": 2, "beta": 0.1},
    "beta": {"beta": 0.1},
    "beta in the reward": {"beta": 0.1, "kl_placement": "reward"},
    "two iterations": {"num_iterations": 2},
    "entropy": {"entropy_coef": 0.01, "top_entropy_quantile": 0.5},
    "self-distillation": {"self_distillation": {"weight": 1.0}},
    "self-distillation, full": {**FULL, "self_distillation": {"weight": 1.0}},
    "steps": {"advantage": "process"},
}
LENGTHS = (5, LONG)
BY_LENGTH = [
    *((name, length) for name in ("adapter", "full") for length in LENGTHS),
    *((name, LENGTHS[place % 2]) for place, name in enumerate(METHODS) if name not in ("adapter", "full")),
]
"""Each method once, adapters and all weights with both lengths."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("realistic")
    return write_model(made, "Qwen3Config", largest_logit=18, layers=3, head_dim=16)


@pytest.fixture
def make(folder: Path, tmp_path: Path) -> Callable[..., RunConfig]:
    """A job of two steps in bfloat16; keyword arguments are hyperparameters."""

    def made(method: str, prompt_tokens: int, *, tools: Any = (), **settings: Any) -> RunConfig:
        asked = [("3+4=7 " * 20)[: prompt_tokens - 3] + str(row) for row in range(4)]
        rows = [
            {"messages": [{"role": "user", "content": text}], "answer": string.ascii_letters + string.digits}
            for text in asked
        ]
        if method == "supervised":
            for row in rows:
                row["messages"] += [{"role": "assistant", "content": "the answer is 12"}]
            body: dict[str, Any] = {"hyperparameters": {"n_steps": 2, "batch_size": 2, **settings}}
        else:
            shape = {"n_steps": 2, "prompts_per_step": 2, "group_size": 6, "max_completion_tokens": 12}
            grader = STEPS if settings.get("advantage") == "process" else ALIKE
            body = {"grader": grader, "tools": tools, "hyperparameters": {"beta": 0.0, **shape, **settings}}
        return RunConfig.model_validate(
            {
                "job_id": "ftjob-test",
                "seed": 7,
                "model": {"name": "tiny", "path": str(folder)},
                "training_file": str(write_rows(tmp_path / "train.jsonl", rows)),
                "method": {"type": method, method: body},
                "runtime": {"dtype": "bfloat16"},
            }
        )

    return made


def run(config: RunConfig, run_dir: Path, prepare: Callable[[Any], None] = lambda loop: None) -> list[Any]:
    """The events of the whole run, in which every trained weight moved."""
    loop = build_loop(config, run_dir)
    prepare(loop)
    before = parameters_of(loop.method)
    events = list(loop.run(lambda: False))
    after = parameters_of(loop.method)
    assert 0 < largest_difference(before, after) < 1
    assert all(torch.isfinite(each).all() for each in after.values())
    steps = [event for event in events if isinstance(event, StepFinished)]
    assert [event.step for event in steps] == [1, 2]
    assert all(math.isfinite(event.metrics["loss"]) for event in steps)
    assert all(event.metrics["grad_norm"] > 0 for event in steps)
    assert isinstance(events[-1], Finished)
    assert not any(isinstance(event, Warned) and event.code.startswith("slower_") for event in events)
    return events


def test_the_start_says_how_the_model_is_computed(make: Callable[..., RunConfig], tmp_path: Path) -> None:
    ways = {"forward": "kernels", "decoder": "kernels", "head": "frozen"}
    assert start_of(make("reinforcement", 5), tmp_path / "a") == (Computation.model_validate(ways), [])
    (full, _) = start_of(make("reinforcement", 5, lora="full"), tmp_path / "b")
    reason = "the output layer is trained, or not a plain linear layer"
    expected = {**ways, "head": "recomputed", "slower_because": {"head": reason}}
    assert full == Computation.model_validate(expected)


def test_a_refusal_of_the_kernels_is_a_warning(
    make: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_model, "rotated", lambda x, cosine, sine: x.clone())
    found, (warning,) = start_of(make("reinforcement", 5), tmp_path)
    assert (found.forward, found.decoder) == ("packed", "shared_prompts")
    assert found.slower_because["forward"] == found.slower_because["decoder"]
    assert warning.code == "slower_forward"
    assert found.slower_because["forward"] in warning.message


def start_of(config: RunConfig, run_dir: Path) -> tuple[Computation, list[Warned]]:
    """What a run reports before its first step."""
    events = list(build_loop(config, run_dir).run(lambda: True))
    assert isinstance(events[0], Started)
    assert events[0].computation is not None
    return events[0].computation, [event for event in events if isinstance(event, Warned)]


@pytest.mark.parametrize(("name", "prompt_tokens"), BY_LENGTH)
def test_every_method_trains(
    name: str, prompt_tokens: int, make: Callable[..., RunConfig], tmp_path: Path
) -> None:
    events = run(make("reinforcement", prompt_tokens, **METHODS[name]), tmp_path)
    for step in (event for event in events if isinstance(event, StepFinished)):
        assert 0 < step.metrics["sampling/sampling_logp_difference/mean"] < 0.2


@pytest.mark.parametrize("lora", [{"rank": 4}, "full"], ids=["adapter", "full"])
def test_sampling_during_training_trains(lora: Any, make: Callable[..., RunConfig], tmp_path: Path) -> None:
    run(make("reinforcement", LONG, lora=lora, max_staleness=1), tmp_path)


@pytest.mark.parametrize("lora", [{"rank": 4}, "full"], ids=["adapter", "full"])
@pytest.mark.parametrize("kind", ["Phi3Config", "MistralConfig"])
def test_models_without_our_kernels_train(
    kind: str, lora: Any, make: Callable[..., RunConfig], tmp_path: Path
) -> None:
    """Through their own layers with our attention; Mistral with a window is sampled by its own cache."""
    window = {"sliding_window": 64} if kind == "MistralConfig" else {}
    other = write_model(tmp_path / "model", kind, largest_logit=18, layers=2, **window)
    config = make("reinforcement", LONG, lora=lora, beta=0.1)
    source = config.model.model_copy(update={"path": str(other)})
    run(config.model_copy(update={"model": source}), tmp_path)


@pytest.mark.parametrize(
    ("lora", "prompt_tokens"), [({"rank": 4}, LONG), ("full", 5)], ids=["adapter", "full"]
)
def test_demonstrations_are_trained(
    lora: Any, prompt_tokens: int, make: Callable[..., RunConfig], tmp_path: Path
) -> None:
    run(make("supervised", prompt_tokens, lora=lora), tmp_path)


@pytest.mark.parametrize(
    ("lora", "prompt_tokens"), [({"rank": 4}, LONG), ("full", 5)], ids=["adapter", "full"]
)
def test_a_job_with_tools_trains_on_several_turns(
    lora: Any,
    prompt_tokens: int,
    make: Callable[..., RunConfig],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def calling(loop: Any) -> None:
        loop.method.sampler.inner = CallsAfterwards(loop.method.sampler.inner)

    with ScriptedServer(lambda request: "7") as server:
        monkeypatch.setenv("GRPO_ALLOWED_HOSTS", server.host)
        tools = [{"type": "http", "name": "add", "url": server.url}]
        config = make("reinforcement", prompt_tokens, tools=tools, lora=lora, max_completion_tokens=120)
        events = run(config, tmp_path, calling)
    (first, _) = [event for event in events if isinstance(event, StepFinished)]
    assert first.metrics["tools/calls_mean"] >= 1
