"""The torch sampler: same tokens whatever is computed together, and their true log-probabilities."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from grpo_engine.contract.records import FinishReason
from grpo_engine.models.fast.operations import BLOCK
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Group, Prompt
from grpo_engine.rollout.sampler.base import Sampling, uniforms
from grpo_engine.rollout.sampler.decoding import (
    CacheDecoder,
    Decoder,
    Kernels,
    OwnLayers,
    PlainDecoder,
    SharedDecoder,
)
from grpo_engine.rollout.sampler.rows import choose
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from tests.engine.conftest import FAMILIES, assert_most_likely
from tests.engine.injection import trained_batch

PROMPTS = [
    Prompt(row, str(row), tuple(6 + (row * 5 + i) % 60 for i in range(length)), {})
    for row, length in enumerate((3, 9, 1, 5))
]
SAMPLING = Sampling(max_tokens=12, temperature=1.0, seed=3, step=2)


def tokens(groups: list[Group]) -> list[list[tuple[int, ...]]]:
    return [[completion.token_ids for completion in group.completions] for group in groups]


@pytest.mark.needs_compiled
@pytest.mark.parametrize(
    ("family", "dtype", "repeated"),
    [
        ("qwen3", torch.float32, 1),
        ("qwen3", torch.float32, 10),
        ("llama", torch.float32, 100),
        ("llama", torch.bfloat16, 1),
        ("qwen3", torch.bfloat16, 100),
    ],
)
def test_no_budget_changes_a_bit_of_a_completion(
    make_policy: Callable[..., Policy], family: str, dtype: torch.dtype, repeated: int
) -> None:
    policy = make_policy(family, dtype=dtype)
    first = replace(PROMPTS[0], token_ids=PROMPTS[0].token_ids * repeated)
    found = [
        TorchSampler(policy, budget).generate([first, *PROMPTS[1:]], 3, SAMPLING) for budget in (3, 4, 9, 64)
    ]
    made = [[(c.token_ids, c.logprobs) for group in groups for c in group.completions] for groups in found]
    assert len(set(made[0])) == 12
    assert made[0] == made[1] == made[2] == made[3]


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("family", FAMILIES)
def test_all_ways_to_decode_draw_with_the_trained_policys_log_probabilities(
    make_policy: Callable[..., Policy], family: str
) -> None:
    """Other kernels round differently, so a draw at a boundary may differ; its probability may not."""
    policy = make_policy(family)
    model, fast = policy.model, policy.fast
    assert (fast is None) == (family == "gpt2")
    ways: list[Callable[[], Decoder]] = [
        lambda: SharedDecoder(model, OwnLayers(model) if fast is None else Kernels(fast)),
        lambda: SharedDecoder(model, OwnLayers(model)),
        lambda: CacheDecoder(model),
        lambda: PlainDecoder(model),
    ]
    for way in ways:
        sampler = TorchSampler(policy, 64)
        sampler._decoder = way
        for group in sampler.generate(PROMPTS, 4, SAMPLING):
            batch = trained_batch(group)
            with torch.no_grad():
                logprobs, _ = policy.logprobs(batch, SAMPLING.temperature)
            assert float((logprobs - batch.sampled_logprobs_N).abs().max()) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_the_fastest_decoder_that_fits_is_chosen(make_policy: Callable[..., Policy], family: str) -> None:
    policy = make_policy(family)
    assert isinstance(TorchSampler(policy, 64)._decoder(), SharedDecoder)
    policy.shares_prompts = False
    assert isinstance(TorchSampler(policy, 64)._decoder(), CacheDecoder)


def test_a_decoder_whose_logits_are_not_the_models_own_is_not_chosen(
    make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy()
    monkeypatch.setattr(SharedDecoder, "step", lambda self, tokens: torch.zeros(len(tokens), 99))
    monkeypatch.setattr(CacheDecoder, "keep", lambda self, rows: None)
    assert isinstance(TorchSampler(policy, 64)._decoder(), PlainDecoder)


@pytest.mark.parametrize("temperature", [0.0, 1e-300])
@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_decoding_takes_the_tokens_that_transformers_finds_most_likely(
    make_policy: Callable[..., Policy], family: str, temperature: float
) -> None:
    policy = make_policy(family)
    sampling = Sampling(max_tokens=10, temperature=temperature)
    groups = TorchSampler(policy, 64).generate(PROMPTS, 1, sampling)
    for group in groups:
        assert_most_likely(policy, group)


def test_sampling_leaves_the_weights_bit_for_bit_as_they_were(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    TorchSampler(policy, 64).generate(PROMPTS, 2, SAMPLING)
    assert all(torch.equal(before[name], p) for name, p in policy.model.named_parameters())
    assert all(p.requires_grad == ("lora_" in name) for name, p in policy.model.named_parameters())


def test_completions_carry_the_policy_version_and_why_they_ended(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    sampler = TorchSampler(policy, 64)
    sampler.load_policy(9)
    completions = [c for g in sampler.generate(PROMPTS, 32, SAMPLING) for c in g.completions]
    assert {c.policy_version for c in completions} == {9}
    stopped = [c for c in completions if c.finish_reason is FinishReason.STOP]
    cut = [c for c in completions if c.finish_reason is FinishReason.LENGTH]
    assert stopped
    assert cut
    assert all(c.token_ids[-1] in policy.stop_set and len(c.logprobs) == len(c.token_ids) for c in stopped)
    assert all(len(c.token_ids) == 12 and c.token_ids[-1] not in policy.stop_set for c in cut)
    assert all("<|end|>" not in c.text for c in stopped)


def test_random_numbers_depend_on_every_part_of_their_name() -> None:
    base = uniforms(1, 2, 3, 4, 5)
    assert np.array_equal(base, uniforms(1, 2, 3, 4, 5))
    assert np.array_equal(base[:3], uniforms(1, 2, 3, 4, 3))
    others = [
        uniforms(0, 2, 3, 4, 5),
        uniforms(1, 0, 3, 4, 5),
        uniforms(1, 2, 0, 4, 5),
        uniforms(1, 2, 3, 0, 5),
    ]
    assert all(not np.array_equal(base, other) for other in others)


def test_tokens_are_drawn_with_their_probabilities() -> None:
    probabilities = torch.tensor([0.1, 0.0, 0.6, 0.3])
    uniform = torch.linspace(0, 1, 10_001)[:-1]
    drawn, logprob = choose(probabilities.log().expand(10_000, -1), uniform, 1.0)
    assert torch.bincount(drawn, minlength=4).tolist() == pytest.approx([1000, 0, 6000, 3000], abs=2)
    assert torch.allclose(logprob, probabilities.log()[drawn])


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 1000])
def test_a_draw_is_the_first_token_whose_cumulative_probability_exceeds_the_number(size: int) -> None:
    logits = torch.randn(50, size, generator=torch.Generator().manual_seed(size))
    uniform = torch.rand(50, generator=torch.Generator().manual_seed(1))
    drawn, logprob = choose(logits, uniform, 0.7)
    exact = (logits.double() / 0.7).softmax(-1)
    cumulative = exact.cumsum(-1)
    at = cumulative.gather(1, drawn[:, None]).squeeze(1)
    assert bool((at > uniform - 1e-6).all())
    assert bool((at - exact.gather(1, drawn[:, None]).squeeze(1) <= uniform + 1e-6).all())
    assert torch.allclose(logprob.double(), exact.gather(1, drawn[:, None]).squeeze(1).log(), atol=1e-5)


@pytest.mark.parametrize("size", [5, BLOCK, 300])
def test_a_token_without_probability_is_never_drawn(size: int) -> None:
    """Sums of single precision may end below the largest number that is drawn."""
    logits = torch.full((4, size), float("-inf"))
    logits[:, 1:3] = torch.tensor([0.3, 0.7]).log()
    uniform = torch.tensor([0.0, 0.29, 1 - 2**-24, 1.0])
    assert choose(logits, uniform, 1.0)[0].tolist() == [1, 1, 2, 2]


def test_a_low_temperature_sharpens_the_reported_log_probability() -> None:
    logits = torch.tensor([[1.0, 0.0]])
    _, logprob = choose(logits, torch.tensor([0.0]), 0.5)
    assert logprob.item() == pytest.approx(float((logits / 0.5).log_softmax(-1)[0, 0]))


def test_a_completion_ends_after_its_first_stop_string_and_keeps_it(
    make_policy: Callable[..., Policy],
) -> None:
    policy = make_policy()
    sampling = Sampling(max_tokens=30, seed=3, stop=("a", "7", "Qz"))
    completions = [c for g in TorchSampler(policy, 64).generate(PROMPTS, 16, sampling) for c in g.completions]
    ended = [c for c in completions if any(text in c.text for text in sampling.stop)]
    assert len(ended) > 10
    for each in ended:
        assert each.finish_reason is FinishReason.STOP
        assert any(each.text.endswith(text) for text in sampling.stop)
        assert not any(text in each.text[:-1] for text in ("a", "7"))
        assert policy.decode(each.token_ids) == each.text
        assert len(each.token_ids) == len(each.logprobs)


@pytest.mark.needs_compiled
def test_stop_strings_change_nothing_before_them(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    free = TorchSampler(policy, 64).generate(PROMPTS, 8, SAMPLING)
    stopped = TorchSampler(policy, 64).generate(PROMPTS, 8, replace(SAMPLING, stop=("a", "7")))
    for left, right in zip(free, stopped, strict=True):
        for whole, part in zip(left.completions, right.completions, strict=True):
            assert whole.token_ids[: len(part.token_ids)] == part.token_ids


def test_every_group_is_reported_once_when_it_is_complete(make_policy: Callable[..., Policy]) -> None:
    reported: dict[int, Group] = {}
    sampler = TorchSampler(make_policy(), sample_budget=8)
    groups = sampler.generate(PROMPTS, 4, SAMPLING, lambda place, group: reported.update({place: group}))
    assert [reported[place] for place in range(len(PROMPTS))] == groups
    assert [group.prompt for group in groups] == PROMPTS


@pytest.mark.needs_compiled
def test_further_prompts_of_a_step_draw_other_tokens(make_policy: Callable[..., Policy]) -> None:
    sampler = TorchSampler(make_policy(), 64)
    again = sampler.generate(PROMPTS[:1], 8, SAMPLING)
    later = sampler.generate(PROMPTS[:1], 8, SAMPLING.starting_at(4))
    assert tokens(again) == tokens(sampler.generate(PROMPTS[:1], 8, SAMPLING.starting_at(0)))
    assert tokens(again) != tokens(later)
    together = sampler.generate([*PROMPTS, PROMPTS[0]], 8, SAMPLING)
    assert tokens(together)[4:] == tokens(later)


def test_a_decoders_memory_is_free_when_its_sampling_ends(
    make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without garbage collection: a decoder holds a copy of the weights and the cache."""
    sampler, made = TorchSampler(make_policy(), 8), []

    def decoder() -> Decoder:
        new = make()
        made.append(weakref.ref(new))
        return new

    make = sampler._decoder
    monkeypatch.setattr(sampler, "_decoder", decoder)
    gc.disable()
    try:
        sampler.generate(PROMPTS, 2, SAMPLING)
        assert [each() for each in made] == [None]
    finally:
        gc.enable()
