"""SDPO: gradients against a plain implementation, the choice of attempts, and a model that learns from it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import ReinforcementHyperparameters, RunConfig
from grpo_engine.contract.events import StepFinished, StepSkipped
from grpo_engine.contract.records import Explanation, FinishReason, Score
from grpo_engine.models.policy import Policy
from grpo_engine.objective.packing import pack
from grpo_engine.objective.types import Completion, Group, ScoredGroup
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.run.build import build_loop
from grpo_engine.training.optimizer import Optimizer
from grpo_engine.training.self_distillation import (
    DistillationBatch,
    DistillationTerm,
    distillation_batch,
    failed_attempts,
)
from tests.engine.conftest import largest_difference, sum_rows
from tests.engine.rollout.tools.scripted_sampler import encoded


def settings(weight: float = 1.0, temperature: float = 1.0, **options: Any) -> ReinforcementHyperparameters:
    return ReinforcementHyperparameters.model_validate(
        {
            "self_distillation": {"weight": weight, **options},
            "temperature": temperature,
            "mask_truncated_completions": True,
        }
    )


def completion(policy: Policy, text: str, **more: Any) -> Completion:
    ids = (*encoded(policy, text), policy.tokenizer.eos_token_id)
    return replace(Completion(text, ids, (-1.0,) * len(ids), FinishReason.STOP, 0), **more)


def scored(policy: Policy, rewards: Sequence[float | None], row: int = 3, feedback: str = "") -> ScoredGroup:
    prompt = RowReader(policy.tokenizer).prompts(sum_rows(row + 1))[row]
    texts = ("the answer is 12", "5", "9 or so", "eight")
    group = Group(prompt, tuple(completion(policy, texts[n]) for n in range(len(rewards))))
    scores = tuple(Score(reward=r, feedback=feedback if r != 1.0 else "") for r in rewards)
    return ScoredGroup(group, scores, (0.0,) * len(rewards), has_signal=False)


def lesson_of(policy: Policy, groups: Sequence[ScoredGroup], **options: Any) -> DistillationBatch:
    return distillation_batch(
        groups, settings(**options), RowReader(policy.tokenizer).rewritten, policy.max_length
    )


def gradients(policy: Policy, batch: DistillationBatch, budget: int = 10_000, **options: Any) -> Any:
    policy.model.zero_grad()
    metrics = DistillationTerm(policy, settings(**options), batch)(budget)
    return metrics, {name: p.grad.clone() for name, p in policy.trainable.items() if p.grad is not None}


@pytest.mark.parametrize("family", ["qwen3", "gpt2"])
@pytest.mark.parametrize("shares_prompts", [True, False])
def test_gradients_are_those_of_a_plain_dense_implementation(
    make_policy: Callable[..., Policy], family: str, shares_prompts: bool
) -> None:
    policy = make_policy(family)
    policy.shares_prompts = shares_prompts
    groups = [scored(policy, (0.0, 1.0, 0.0), 3), scored(policy, (0.2, 0.0), 5, feedback="too small")]
    batch = lesson_of(policy, groups)
    metrics, found = gradients(policy, batch, weight=0.5, temperature=0.8)

    policy.model.zero_grad()
    total, tokens = torch.zeros(()), 0
    for group in batch.student:
        for sequence in group.sequences:
            hinted = batch.teacher[sequence.index].prompt_ids
            logits = []
            for prompt in (group.prompt_ids, hinted):
                ids = torch.tensor([[*prompt, *sequence.token_ids]])
                logits.append(policy.model(input_ids=ids).logits[0, len(prompt) - 1 : -1] / 0.8)
            p, q = logits[0].softmax(-1), logits[1].detach().softmax(-1)
            total = total + (p * (p.log() - q.log())).sum()
            tokens += len(sequence.token_ids)
    (0.5 * total / tokens).backward()
    expected = {name: p.grad.clone() for name, p in policy.trainable.items() if p.grad is not None}
    assert batch.num_tokens == tokens
    assert largest_difference(expected, found) < 1e-6
    assert max(float(g.abs().max()) for g in expected.values()) > 1e-4
    kl = float(total.detach()) / tokens
    assert metrics["self_distillation/kl"] == pytest.approx(kl, abs=1e-6)
    assert metrics["loss"] == pytest.approx(0.5 * kl, abs=1e-6)
    assert metrics["self_distillation/attempts"] == 4


def test_explanations_with_hidden_results_never_reach_the_teacher(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    group = scored(policy, (0.0, 1.0), feedback="wrong")
    hidden = {"code": (Explanation(label="test 1 of 1", passed=False, got="1", expected="hidden"),)}
    explained = tuple(score.model_copy(update={"explanations": hidden}) for score in group.scores)
    assert lesson_of(policy, [replace(group, scores=explained)]) == lesson_of(policy, [group])


@pytest.mark.parametrize("budget", [10_000, 200, 40, 1])
def test_gradients_do_not_depend_on_how_the_step_is_cut(
    make_policy: Callable[..., Policy], budget: int
) -> None:
    policy = make_policy()
    groups = [scored(policy, (0.0, 1.0, 0.0, 0.0), row, feedback="no" * row) for row in (1, 4, 6)]
    batch = lesson_of(policy, groups)
    metrics, whole = gradients(policy, batch)
    other, cut = gradients(policy, batch, budget)
    assert largest_difference(whole, cut) < 1e-6
    assert other == pytest.approx(metrics, abs=1e-6)


def test_a_teacher_with_the_same_prompt_teaches_nothing(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    # An attempt alone in its micro-batch is the same computation twice, to the last bit.
    for rewards, tolerance in (((0.0,), 0.0), ((0.0, 0.0, 0.0), 1e-7)):
        groups = [scored(policy, rewards, row, feedback="no") for row in (3, 5)]
        batch = distillation_batch(groups, settings(), lambda prompt, tell: prompt.token_ids)
        metrics, found = gradients(policy, batch, budget=1 if tolerance == 0 else 1000)
        assert abs(metrics["self_distillation/kl"]) <= tolerance
        assert max(float(gradient.abs().max()) for gradient in found.values()) <= tolerance


def test_tokens_of_a_tool_are_not_distilled(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    group = scored(policy, (0.0,), feedback="no")
    (attempt,) = group.group.completions
    sampled = tuple(place not in (4, 5, 6) for place in range(len(attempt.token_ids)))
    masked = replace(group, group=Group(group.group.prompt, (replace(attempt, sampled=sampled),)))
    batch = lesson_of(policy, [masked])
    assert batch.num_tokens == len(attempt.token_ids) - 3
    metrics, found = gradients(policy, batch)
    whole, _ = gradients(policy, lesson_of(policy, [group]))
    assert metrics["self_distillation/kl"] != whole["self_distillation/kl"]
    assert all(bool(gradient.isfinite().all()) for gradient in found.values())


def test_feedback_holds_the_graders_message_and_the_best_sibling(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    group = scored(policy, (0.5, 1.0, None, 3.0), feedback="too small")

    def hinted(**options: Any) -> dict[int, str]:
        chosen = settings(**options).self_distillation
        assert chosen is not None
        return dict(failed_attempts(group, chosen))

    both = hinted()
    assert set(both) == {0}
    assert "too small" in both[0]
    assert both[0].endswith("eight")
    assert "too small" not in hinted(feedback="sibling")[0]
    assert "eight" not in hinted(feedback="grader")[0]
    assert set(hinted(success_reward=2.0, feedback="grader")) == {0}
    assert set(hinted(success_reward=2.0, feedback="sibling")) == {0, 1}
    assert hinted(success_reward=9.0, feedback="sibling") == {}


def test_without_message_and_without_sibling_there_is_no_lesson(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    assert lesson_of(policy, [scored(policy, (0.0, 0.0))]).teacher == {}
    assert lesson_of(policy, [scored(policy, (1.0, 1.0), feedback="fine")]).teacher == {}


def test_attempts_that_are_not_trained_or_do_not_fit_with_their_feedback_are_left_out(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    group = scored(policy, (0.0, 0.0), feedback="no")
    first, second = group.group.completions
    cut = replace(first, finish_reason=FinishReason.LENGTH)
    batch = lesson_of(policy, [replace(group, group=Group(group.group.prompt, (cut, second)))])
    assert [each.token_ids for each in batch.student[0].sequences] == [second.token_ids]
    assert lesson_of(policy, [scored(policy, (0.0,), feedback="no" * 600)]).too_long == 1


def test_the_teacher_reads_the_question_with_the_feedback_in_its_last_user_turn(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    group = scored(policy, (0.0,), feedback="{prompt} is no number")
    batch = lesson_of(policy, [group], template="Was: {feedback}. {other} {prompt}", feedback="grader")
    text = policy.tokenizer.decode(list(batch.teacher[0].prompt_ids))
    assert text.startswith("<|user|>Was: An earlier answer was wrong.")
    assert text.endswith("{prompt} is no number. {other} 3+1=<|assistant|>")
    assert batch.teacher[0].sequences == batch.student[0].sequences


def test_earlier_turns_and_tools_stay_and_a_plain_prompt_is_rewritten_whole(
    make_policy: Callable[..., Policy],
) -> None:
    tokenizer = make_policy().tokenizer
    reader = RowReader(tokenizer)
    turns = [("system", "be brief"), ("user", "1+1="), ("assistant", "2"), ("user", "2+2=")]
    rows = [
        {"messages": [{"role": role, "content": text} for role, text in turns]},
        {"prompt": "5+5="},
    ]
    chat, plain = reader.prompts(rows)
    shown = [
        tokenizer.decode(list(reader.rewritten(prompt, lambda text: f"[{text}]"))) for prompt in (chat, plain)
    ]
    assert shown[0] == "<|system|>be brief<|user|>1+1=<|assistant|>2<|end|><|user|>[2+2=]<|assistant|>"
    assert shown[1] == "[5+5=]"
    assert reader.rewritten(chat, str) == chat.token_ids


def test_the_divergence_from_the_informed_teacher_falls(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    groups = [scored(policy, (0.0, 1.0, 0.0), row) for row in (2, 3, 5)]
    term = DistillationTerm(policy, settings(), lesson_of(policy, groups))
    optimizer = Optimizer(policy.trainable, settings())
    divergence = []
    for step in range(30):
        metrics = term(10_000)
        divergence.append(metrics["self_distillation/kl"])
        optimizer.step(3e-3, metrics["loss"], step=step, rows=[])
    assert divergence[0] > 1e-3
    assert divergence[-1] < 0.5 * divergence[0]


NEVER = {"type": "string_check", "operation": "eq", "input": "{{sample.output_text}}", "reference": "12"}


def step_events(config: RunConfig, folder: Path) -> list[Any]:
    return list(build_loop(config, folder).method.step(1))


def test_a_step_without_signal_trains_on_failed_attempts_with_feedback(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    without = step_events(make_config(grader=NEVER, beta=0.0), tmp_path / "a")
    assert isinstance(without[-1], StepSkipped)
    events = step_events(make_config(grader=NEVER, beta=0.0, self_distillation={}), tmp_path / "b")
    assert isinstance(events[-1], StepFinished)
    metrics = events[-1].metrics
    assert metrics["frac_reward_zero_std"] == 1.0
    assert metrics["self_distillation/attempts"] == 16
    assert metrics["loss"] == pytest.approx(metrics["self_distillation/kl"])
    assert metrics["grad_norm"] > 0


def test_alone_leaves_the_policy_gradient_out_and_a_weight_adds_to_it(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    options = {"feedback": "sibling", "weight": 0.3}
    alone = step_events(make_config(beta=0.0, self_distillation={**options, "alone": True}), tmp_path / "a")
    both = step_events(make_config(beta=0.0, self_distillation=options), tmp_path / "b")
    plain = step_events(make_config(beta=0.0), tmp_path / "c")
    only, added, base = alone[-1].metrics, both[-1].metrics, plain[-1].metrics
    assert "entropy" not in only
    assert only["loss"] == pytest.approx(0.3 * only["self_distillation/kl"])
    assert added["loss"] == pytest.approx(base["loss"] + only["loss"], abs=1e-6)
    assert added["self_distillation/kl"] == pytest.approx(only["self_distillation/kl"], abs=1e-6)
    assert 0 < only["self_distillation/attempts"] < 16
    for each in (only, base):
        assert 0 < each["sampling/sampling_logp_difference/mean"] < 1e-5
        assert each["sampling/sampling_logp_difference/max"] < 1e-4
    assert added["sampling/sampling_logp_difference/mean"] == base["sampling/sampling_logp_difference/mean"]


def test_the_difference_to_the_sampler_is_that_of_the_weights_it_sampled_with(
    make_policy: Callable[..., Policy],
) -> None:
    """Not that of the step's own later updates."""
    policy = make_policy()
    groups = [scored(policy, (0.0, 1.0, 0.0), row) for row in (2, 3)]
    term = DistillationTerm(policy, settings(), lesson_of(policy, groups))
    (batch,) = pack(term.batch.student, 10_000, policy.device)
    with torch.no_grad():
        difference_N = (policy.logprobs(batch)[0] - batch.sampled_logprobs_N).abs()
    first = term(10_000)
    Optimizer(policy.trainable, settings()).step(3e-3, first["loss"], step=1)
    second = term(10_000)
    assert second["self_distillation/kl"] != first["self_distillation/kl"]
    for metrics in (first, second):
        mean, largest = (metrics[f"sampling/sampling_logp_difference/{kind}"] for kind in ("mean", "max"))
        assert mean == pytest.approx(float(difference_N.mean()), rel=1e-4)
        assert largest == pytest.approx(float(difference_N.max()), rel=1e-4)
