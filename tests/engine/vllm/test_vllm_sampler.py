"""vLLM as a sampler: the trainer's tokens and log-probabilities, whatever is sampled together."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from grpo_engine.config.tools import HttpTool
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt
from grpo_engine.rollout.sampler.base import Continuation, NextTurn, Sampling
from grpo_engine.rollout.sampler.vllm.sampler import VllmSampler, request_seed
from grpo_engine.rollout.tools.sampler import ToolSampler
from tests.engine.conftest import assert_most_likely
from tests.engine.families.wrappers import make_wrapper
from tests.engine.injection import trained_batch
from tests.engine.rollout.tools.test_training import CallsAfterwards
from tests.engine.vllm.conftest import PROMPTS
from tests.support.chat_server import ScriptedServer

SAMPLING = Sampling(max_tokens=12, temperature=1.0, seed=3, step=2)
MODELS = [("qwen3", None), ("llama", None), ("gpt2", "full")]
Make = Callable[..., VllmSampler]


def tokens(groups: list[Group]) -> list[list[tuple[int, ...]]]:
    return [[completion.token_ids for completion in group.completions] for group in groups]


@pytest.mark.parametrize(("family", "lora"), MODELS)
def test_greedy_tokens_are_those_that_the_policy_finds_most_likely(
    shared_sampler: Make, family: str, lora: Any
) -> None:
    sampler = shared_sampler(family, lora)
    for group in sampler.generate(PROMPTS, 1, Sampling(max_tokens=24, temperature=0.0)):
        assert_most_likely(sampler.policy, group)
        (completion,) = group.completions
        assert completion.text == sampler.policy.decode(completion.token_ids)
        ended = completion.token_ids[-1] in sampler.policy.stop_set
        assert completion.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_on_a_quantised_base_log_probabilities_are_the_trainers(
    make_sampler: Make, make_policy: Callable[..., Policy], tmp_path: Path, kind: str
) -> None:
    policy = make_policy(quantization=kind)
    sampler = make_sampler(policy=policy)
    assert list(tmp_path.glob("served-*")) == []
    for group in sampler.generate(PROMPTS, 4, SAMPLING):
        batch = trained_batch(group)
        with torch.no_grad():
            assert float((policy.logprobs(batch)[0] - batch.sampled_logprobs_N).abs().max()) < 1e-4


@pytest.mark.parametrize(("kind", "lora"), [("Gemma3Config", None), ("Qwen3VLConfig", "full")])
def test_on_the_language_model_inside_another_log_probabilities_are_the_trainers(
    make_sampler: Make, make_policy: Callable[..., Policy], tmp_path: Path, kind: str, lora: Any
) -> None:
    policy = make_policy(folder=make_wrapper(tmp_path / "whole", kind), lora=lora)
    sampler = make_sampler(policy=policy)
    for group in sampler.generate(PROMPTS, 4, SAMPLING):
        batch = trained_batch(group)
        with torch.no_grad():
            assert float((policy.logprobs(batch)[0] - batch.sampled_logprobs_N).abs().max()) < 1e-4


@pytest.mark.parametrize(("family", "lora"), MODELS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_log_probabilities_are_the_trainers(
    shared_sampler: Make, family: str, lora: Any, temperature: float
) -> None:
    sampler = shared_sampler(family, lora)
    for group in sampler.generate(PROMPTS, 4, replace(SAMPLING, temperature=temperature)):
        batch = trained_batch(group)
        with torch.no_grad():
            logprobs, _ = sampler.policy.logprobs(batch, temperature)
        assert float((logprobs - batch.sampled_logprobs_N).abs().max()) < 1e-4


def test_tokens_depend_on_their_name_and_not_on_the_batch(shared_sampler: Make, make_sampler: Make) -> None:
    sampler = shared_sampler()
    together = tokens(sampler.generate(PROMPTS, 6, SAMPLING))
    assert len({ids for group in together for ids in group}) > 12
    assert tokens(sampler.generate(PROMPTS, 6, SAMPLING)) == together
    assert tokens(sampler.generate(PROMPTS[2:], 6, SAMPLING.starting_at(2))) == together[2:]
    assert tokens(sampler.generate(PROMPTS, 6, replace(SAMPLING, step=3))) != together
    again = make_sampler(policy=sampler.policy)
    assert tokens(again.generate(PROMPTS, 6, SAMPLING)) == together


def test_every_part_of_a_completions_name_changes_its_seed() -> None:
    names = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
    seeds = {request_seed(SAMPLING, *name) for name in names}
    seeds |= {
        request_seed(replace(SAMPLING, seed=4), 0, 0, 0),
        request_seed(replace(SAMPLING, step=4), 0, 0, 0),
    }
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_completions_have_their_finish_reason(shared_sampler: Make) -> None:
    sampler = shared_sampler()
    completions = [c for g in sampler.generate(PROMPTS, 32, SAMPLING) for c in g.completions]
    assert {c.policy_version for c in completions} == {0}
    stopped = [c for c in completions if c.finish_reason is FinishReason.STOP]
    cut = [c for c in completions if c.finish_reason is FinishReason.LENGTH]
    assert stopped
    assert cut
    assert all(c.token_ids[-1] in sampler.policy.stop_set for c in stopped)
    assert all("<|end|>" not in c.text for c in stopped)
    assert all(len(c.token_ids) == 12 and c.token_ids[-1] not in sampler.policy.stop_set for c in cut)


def test_a_completion_ends_after_its_first_stop_string_and_keeps_it(shared_sampler: Make) -> None:
    sampler = shared_sampler()
    sampling = replace(SAMPLING, max_tokens=30, stop=("a", "7", "Qz"))
    completions = [c for g in sampler.generate(PROMPTS, 16, sampling) for c in g.completions]
    ended = [c for c in completions if any(text in c.text for text in sampling.stop)]
    assert len(ended) > 10
    for each in ended:
        assert each.finish_reason is FinishReason.STOP
        assert any(each.text.endswith(text) for text in sampling.stop)
        assert not any(text in each.text[:-1] for text in ("a", "7"))
        assert sampler.policy.decode(each.token_ids) == each.text
        assert len(each.token_ids) == len(each.logprobs)


def test_rows_with_limits_of_their_own_are_those_sampled_alone_with_that_limit(shared_sampler: Make) -> None:
    sampler = shared_sampler()
    goes_on = [
        Continuation(prompt=n, sample=1, turn=1, max_tokens=limit) for n, limit in enumerate((40, 12, 7))
    ]
    rows = PROMPTS[:3]
    together = sampler.generate(rows, 1, replace(SAMPLING, max_tokens=40, continuing=tuple(goes_on)))
    for group, row, each in zip(together, rows, goes_on, strict=True):
        alone = replace(SAMPLING, max_tokens=each.max_tokens, continuing=(each,))
        assert tokens(sampler.generate([row], 1, alone)) == tokens([group])
        assert len(group.completions[0].token_ids) <= each.max_tokens
    begins = tokens(sampler.generate(rows, 2, replace(SAMPLING, max_tokens=7)))
    assert begins[2][1] != together[2].completions[0].token_ids


def test_every_group_is_reported_once_when_it_is_complete(shared_sampler: Make) -> None:
    reported: dict[int, Group] = {}
    order: list[int] = []

    def hear(place: int, group: Group) -> None:
        order.append(place)
        reported[place] = group

    limits = (12, 1, 8, 4)
    goes_on = tuple(Continuation(prompt=n, sample=0, turn=1, max_tokens=m) for n, m in enumerate(limits))
    groups = shared_sampler().generate(PROMPTS, 1, replace(SAMPLING, continuing=goes_on), hear)
    assert [reported[place] for place in range(len(PROMPTS))] == groups
    assert [group.prompt for group in groups] == PROMPTS
    assert sorted(order) == [0, 1, 2, 3]
    assert order[0] == 1


def test_a_caller_that_fails_leaves_nothing_running(shared_sampler: Make) -> None:
    sampler = shared_sampler()
    expected = tokens(sampler.generate(PROMPTS, 4, SAMPLING))

    def fail(place: int, group: Group) -> None:
        raise RuntimeError("no grader left")

    with pytest.raises(RuntimeError, match="no grader left"):
        sampler.generate(PROMPTS, 4, SAMPLING, fail)
    assert not sampler.engine.core.has_unfinished_requests()
    assert tokens(sampler.generate(PROMPTS, 4, SAMPLING)) == expected


def test_a_groups_prompt_is_computed_once(shared_sampler: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = shared_sampler()
    computed: list[int] = []
    executor = sampler.engine.core.model_executor
    execute = executor.execute_model

    def counting(scheduled: Any, *arguments: Any, **options: Any) -> Any:
        computed.append(scheduled.total_num_scheduled_tokens)
        return execute(scheduled, *arguments, **options)

    monkeypatch.setattr(executor, "execute_model", counting)
    sampler.engine.forget_prefixes()
    (group,) = sampler.generate(PROMPTS[3:], 8, replace(SAMPLING, max_tokens=1))
    shared = 32
    assert len(group.completions) == 8
    assert sum(computed) == 45 + 7 * (45 - shared)


def test_a_turn_that_becomes_ready_joins_one_that_is_being_sampled(shared_sampler: Make) -> None:
    sampler = shared_sampler()
    long, short = (
        NextTurn(PROMPTS[number], Continuation(prompt=number, sample=0, turn=1, max_tokens=limit))
        for number, limit in enumerate((60, 2))
    )
    first, later = iter([[long]]), iter([[], [short]])
    turns = SimpleNamespace(wait=lambda _: next(first, None), ready=lambda: next(later, []))
    found: list[tuple[NextTurn, Completion]] = []
    sampler.sample_turns(turns, SAMPLING, lambda *ended: found.append(ended))
    assert [turn for turn, _ in found] == [short, long]
    for turn, completion in found:
        alone = replace(SAMPLING, continuing=(turn.continuation,))
        assert tokens(sampler.generate([turn.prompt], 1, alone)) == [[completion.token_ids]]


def test_tools_run_between_turns_that_vllm_samples(
    shared_sampler: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedServer(lambda request: "7") as server:
        monkeypatch.setenv("GRPO_ALLOWED_HOSTS", server.host)
        inner = shared_sampler()
        tools = [HttpTool(type="http", name="add", url=server.url)]
        prompts = [Prompt(row, "", (4, 9 + row, 5), {}) for row in range(3)]
        sampling = replace(SAMPLING, max_tokens=120)
        sampler = ToolSampler(CallsAfterwards(inner), inner.policy, tools, max_turns=3)  # type: ignore[arg-type]
        groups = sampler.generate(prompts, 2, sampling)
        again = sampler.generate(prompts[1:], 2, sampling.starting_at(1))
    assert not ToolSampler(inner, inner.policy, tools, max_turns=3).matches_trainer
    assert all(each.turns == 2 and not all(each.sampled) for group in groups for each in group.completions)
    assert tokens(again) == tokens(groups)[1:]
