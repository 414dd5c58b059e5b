"""Tools and a real model: draws that do not depend on batching, masked training, the job's own tools."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import ReinforcementHyperparameters, RunConfig
from grpo_engine.config.tools import HttpTool, PythonTool, function_schemas
from grpo_engine.contract.events import RolloutsRecorded, StepFinished
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.metrics import tool_metrics
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, pack
from grpo_engine.objective.types import Completion, Group, Prompt
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.sampler.base import Continuation, OnTurn, Sampling, uniforms
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.rollout.sampler.turns import TurnQueue
from grpo_engine.rollout.tools.sampler import ToolSampler
from grpo_engine.run.build import build_loop
from grpo_engine.training.gradients import PolicyGradient
from tests.engine.conftest import sum_rows, write_rows
from tests.engine.rollout.tools.scripted_sampler import ScriptedSampler, encoded
from tests.engine.rollout.tools.test_sampler import CALL, SAMPLING, prompts
from tests.support.chat_server import Recorded, ScriptedServer


@pytest.fixture
def adder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tool's server that answers "7" unless a test changes it."""
    with ScriptedServer(lambda request: "7") as server:
        monkeypatch.setenv("GRPO_ALLOWED_HOSTS", server.host)
        yield server


def test_a_turn_has_its_own_random_numbers() -> None:
    first, second, third = (uniforms(1, 2, 3, 4, 50, turn=turn) for turn in (0, 1, 2))
    assert (first == uniforms(1, 2, 3, 4, 50)).all()
    assert not (first == second).any()
    assert not (second == third).any()


class CallsAfterwards:
    """Around a real sampler: completions of the first turn end in a call that the model did not make."""

    matches_trainer = True

    def __init__(self, inner: TorchSampler) -> None:
        self.inner = inner

    def rest(self) -> dict[str, float]:
        return {}

    def load_policy(self, version: int) -> None:
        self.inner.load_policy(version)

    def generate(
        self, prompts_P: Sequence[Prompt], group_size: int, sampling: Sampling, on_group: Any = None
    ) -> list[Group]:
        groups = self.inner.generate(prompts_P, group_size, replace(sampling, max_tokens=12))
        groups = [self._calling(group) for group in groups]
        for place, group in enumerate(groups):
            on_group(place, group)
        return groups

    def sample_turns(self, turns: TurnQueue, sampling: Sampling, on_turn: OnTurn) -> None:
        self.inner.sample_turns(turns, sampling, on_turn)

    def _calling(self, group: Group) -> Group:
        ids = tuple(encoded(self.inner.policy, CALL))
        return Group(
            group.prompt,
            tuple(
                replace(
                    each,
                    token_ids=(*each.token_ids, *ids),
                    logprobs=(*each.logprobs, *[0.0] * len(ids)),
                    finish_reason=FinishReason.STOP,
                )
                for each in group.completions
            ),
        )


@pytest.mark.needs_compiled
def test_later_turns_do_not_depend_on_the_batch(
    make_policy: Callable[..., Policy], adder: ScriptedServer
) -> None:
    policy = make_policy()
    tools = [HttpTool(type="http", name="add", url=adder.url)]
    sampling = replace(SAMPLING, max_tokens=120)

    def sampled(budget: int, chosen: slice, first: int) -> list[tuple[int, ...]]:
        sampler = ToolSampler(CallsAfterwards(TorchSampler(policy, budget)), policy, tools, max_turns=4)
        groups = sampler.generate(prompts(policy, 4)[chosen], 3, sampling.starting_at(first))
        return [each.token_ids for group in groups for each in group.completions]

    together = sampled(64, slice(0, 4), 0)
    assert len(set(together)) == 12
    assert sampled(3, slice(0, 4), 0) == together
    assert [*sampled(64, slice(0, 1), 0), *sampled(64, slice(1, 4), 1)] == together


@pytest.mark.needs_compiled
def test_a_slow_answer_delays_only_its_own_completion(
    make_policy: Callable[..., Policy], adder: ScriptedServer
) -> None:
    """The first row's tool answers only after the second row's group has ended."""
    policy, second_has_ended = make_policy(), threading.Event()

    def answer(request: Recorded) -> str:
        if request.json["item"]["answer"] == rows[0].item["answer"]:
            return "7" if second_has_ended.wait(100) else "too late"
        return "7"

    def on_group(place: int, group: Group) -> None:
        if place == 1:
            second_has_ended.set()

    adder.answer, rows = answer, prompts(policy, 2)
    assert rows[0].item["answer"] != rows[1].item["answer"]
    tools = [HttpTool(type="http", name="add", url=adder.url, timeout_seconds=120)]
    sampler = ToolSampler(CallsAfterwards(TorchSampler(policy, 64)), policy, tools, max_turns=4)
    groups = sampler.generate(rows, 2, replace(SAMPLING, max_tokens=120), on_group)
    answers = [call["answer"] for group in groups for each in group.completions for call in each.tool_calls]
    assert set(answers) == {"7"}
    assert len(answers) >= 4


@pytest.mark.needs_compiled
def test_rows_with_limits_of_their_own_are_those_sampled_alone_with_that_limit(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    sampler, made = TorchSampler(policy, 64), prompts(policy, 3)
    long = replace(made[1], token_ids=made[1].token_ids * 100)
    rows = [made[0], replace(long, token_ids=long.token_ids[:500]), made[2]]
    goes_on = [
        Continuation(prompt=n, sample=1, turn=1, max_tokens=limit) for n, limit in enumerate((40, 12, 7))
    ]
    together = sampler.generate(rows, 1, replace(SAMPLING, max_tokens=40, continuing=tuple(goes_on)))
    for group, row, each in zip(together, rows, goes_on, strict=True):
        alone = replace(SAMPLING, max_tokens=each.max_tokens, continuing=(each,))
        (expected,) = sampler.generate([row], 1, alone)
        assert group.completions[0].token_ids == expected.completions[0].token_ids
        assert group.completions[0].finish_reason is expected.completions[0].finish_reason
        assert len(group.completions[0].token_ids) <= each.max_tokens


def _training_group(completion: Completion, prompt: Prompt, noise: float = 0.0) -> TrainingGroup:
    """Advantage 0.7 for the model's tokens, `noise` for a tool's."""
    advantages = tuple(0.7 if own else noise for own in completion.sampled)
    logprobs = tuple(
        p if own else noise for p, own in zip(completion.logprobs, completion.sampled, strict=True)
    )
    sequence = TrainingSequence(
        completion.token_ids, logprobs, advantages, weight=0.1, kl_weight=0.1, trained=completion.sampled
    )
    return TrainingGroup(prompt.token_ids, (sequence,))


def _gradients(policy: Policy, group: TrainingGroup) -> dict[str, torch.Tensor]:
    policy.model.zero_grad()
    settings = ReinforcementHyperparameters(loss_type="reinforce", beta=0.0)  # type: ignore[call-arg]
    PolicyGradient(policy, settings, [group], beta=0.0, correction="none")(1000)
    return {name: p.grad.clone() for name, p in policy.trainable.items() if p.grad is not None}


def test_tool_tokens_move_nothing_and_the_models_own_follow_from_the_whole_sequence(
    make_policy: Callable[..., Policy], adder: ScriptedServer
) -> None:
    policy = make_policy()
    inner = ScriptedSampler(policy, lambda stream: CALL if stream[2] == 0 else "It is 7.")
    sampler = ToolSampler(inner, policy, [HttpTool(type="http", name="add", url=adder.url)], max_turns=4)
    (talk,) = sampler.generate(prompts(policy), 1, SAMPLING)
    (completion,) = talk.completions
    (prompt,) = prompts(policy)
    group = _training_group(completion, prompt)
    (batch,) = pack([group], 1000, policy.device)
    own = torch.tensor(completion.sampled)
    ids = torch.tensor([[*prompt.token_ids, *completion.token_ids]])
    log_all = policy.model(input_ids=ids).logits[0, len(prompt.token_ids) - 1 : -1].log_softmax(-1)
    dense = log_all.gather(1, torch.tensor(completion.token_ids)[:, None]).squeeze(1)
    logprobs, _ = policy.logprobs(batch)
    assert float((logprobs - dense[own]).detach().abs().max()) < 1e-5

    policy.model.zero_grad()
    (-(dense * own) * 0.7 * 0.1).sum().backward()
    expected = {name: p.grad.clone() for name, p in policy.trainable.items() if p.grad is not None}
    found = _gradients(policy, group)
    # float32 sums of two orders: a few 1e-6 of the largest gradient
    assert max(float((found[name] - expected[name]).abs().max()) for name in expected) < 4e-6
    with_noise = _gradients(policy, _training_group(completion, prompt, noise=1e6))
    assert all(torch.equal(found[name], with_noise[name]) for name in found)


def test_metrics_count_calls_turns_and_failures() -> None:
    plain = Completion("a", (1,), (0.0,), FinishReason.STOP, 0)
    calls = ({"error": True}, {"error": False}, {"error": False})
    used = replace(plain, turns=3, tool_calls=calls)
    assert tool_metrics([plain, used]) == {
        "tools/calls_mean": 1.5,
        "tools/turns_mean": 2.0,
        "tools/error_rate": pytest.approx(1 / 3),
    }
    assert tool_metrics([plain]) == {"tools/calls_mean": 0.0, "tools/turns_mean": 1.0}


TOOLS_TEMPLATE = "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}{{ messages[0].content }}"


def test_the_jobs_tools_are_shown_before_the_rows_own_and_replace_those_of_their_name(
    make_policy: Callable[..., Policy],
) -> None:
    tokenizer = make_policy().tokenizer
    tokenizer.chat_template = TOOLS_TEMPLATE
    reader = RowReader(tokenizer, tools=function_schemas([PythonTool(type="python", name="run")]))
    own = [{"type": "function", "function": {"name": name}} for name in ("search", "run")]
    (plain, with_tools) = reader.prompts(
        [{**row, "tools": own} if n else row for n, row in enumerate(sum_rows(2))]
    )
    assert plain.text == "run 0+0="
    assert with_tools.text == "run search 1+7="


def test_a_job_with_tools_trains(
    make_config: Callable[..., RunConfig], tmp_path: Path, adder: ScriptedServer
) -> None:
    """A random model makes no calls; the step, its rollouts and its metrics are those of any job."""
    config = make_config(n_steps=1)
    data = config.model_dump(mode="json")
    data["method"]["reinforcement"]["tools"] = [
        {"type": "python"},
        {"type": "http", "name": "add", "url": adder.url},
    ]
    data["training_file"] = str(write_rows(tmp_path / "rows.jsonl", sum_rows(8)))
    trainer = build_loop(RunConfig.model_validate(data), tmp_path)
    events = list(trainer.run(lambda: False))
    (finished,) = [event for event in events if isinstance(event, StepFinished)]
    assert finished.metrics["completions/mean_length"] > 1
    assert any(isinstance(event, RolloutsRecorded) for event in events)
