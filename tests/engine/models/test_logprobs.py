"""Chunked log-probabilities and entropies against float64 on whole logits."""

import pytest
import torch
from torch import Tensor

from grpo_engine.models import logprobs as module
from grpo_engine.models.logprobs import LogitsOf, token_logprobs

pytestmark = pytest.mark.usefixtures("both_ways")


def weights(tokens: int, hidden: int, vocab: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(tokens, hidden, generator=generator)
    head = torch.randn(vocab, hidden, generator=generator)
    return states, head, torch.randint(0, vocab, (tokens,), generator=generator)


@pytest.mark.parametrize(("tokens", "chunk"), [(1, 1000), (7, 3), (64, 5), (65, 64)])
def test_chunks_change_neither_values_nor_gradients(
    tokens: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    states, head, targets = weights(tokens, 8, 13)
    monkeypatch.setattr(module, "CPU_CHUNK_ELEMENTS", chunk * 13)
    states.requires_grad_(True)
    head.requires_grad_(True)
    chosen, entropy = token_logprobs(states, targets, lambda h: h @ head.T, temperature=0.5)
    chosen.sum().backward()
    exact = states.detach().double().requires_grad_(True)
    log_all = (exact @ head.detach().double().T / 0.5).log_softmax(-1)
    expected = log_all.gather(1, targets[:, None]).squeeze(1)
    expected.sum().backward()
    assert torch.allclose(chosen.double(), expected, atol=1e-5)
    assert torch.allclose(entropy.double(), -(log_all.exp() * log_all).sum(-1), atol=1e-5)
    assert states.grad is not None
    assert exact.grad is not None
    assert torch.allclose(states.grad.double(), exact.grad, atol=1e-4)


def test_all_mass_on_one_token_has_entropy_zero_and_no_nan() -> None:
    logits = torch.tensor([[1e4, -1e4, 0.0]])
    chosen, entropy = token_logprobs(logits, torch.tensor([0]), lambda h: h, temperature=1.0)
    assert chosen.tolist() == [0.0]
    assert entropy.tolist() == [0.0]


def test_no_tokens_are_not_an_error() -> None:
    chosen, entropy = token_logprobs(
        torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), lambda h: h, temperature=1.0
    )
    assert chosen.shape == entropy.shape == (0,)


VOCABULARY, HIDDEN = 37, 8


def frozen_head(*, bias: bool = False, scale: float = 1.0) -> torch.nn.Linear:
    head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=bias)
    generator = torch.Generator().manual_seed(4)
    for parameter in head.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * scale
    return head.requires_grad_(False)


Found = tuple[Tensor, Tensor, Tensor]
"""Log-probabilities, entropies and the gradient of an uneven sum of the log-probabilities."""


def found(
    states: Tensor, targets: Tensor, head: LogitsOf, temperature: float, vocab: int = VOCABULARY
) -> Found:
    leaf = states.clone().requires_grad_(True)
    chosen, entropy = token_logprobs(leaf, targets, head, temperature=temperature)
    (gradient,) = torch.autograd.grad((chosen * torch.linspace(-1, 2, len(chosen))).sum(), leaf)
    return chosen.detach(), entropy.detach(), gradient


def exact(states: Tensor, targets: Tensor, head: torch.nn.Linear, temperature: float) -> Found:
    """On whole logits in float64."""
    leaf = states.double().requires_grad_(True)
    bias = None if head.bias is None else head.bias.double()
    log_all = (torch.nn.functional.linear(leaf, head.weight.double(), bias) / temperature).log_softmax(-1)
    chosen = log_all.gather(1, targets[:, None]).squeeze(1)
    weights = torch.linspace(-1, 2, len(chosen), dtype=torch.float64)
    (gradient,) = torch.autograd.grad((chosen * weights).sum(), leaf)
    entropy = -(log_all.exp() * log_all).nan_to_num(0.0).sum(-1)
    return chosen.detach(), entropy.detach(), gradient


def assert_near(left: Found, right: Found, tolerance: float) -> None:
    for one, other in zip(left, right, strict=True):
        largest = max(1.0, float(other.abs().max()))
        assert torch.allclose(one.double(), other.double(), rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize("chunk", [1, 3, 8, 1000])
@pytest.mark.parametrize(
    ("temperature", "bias", "scale", "tolerance"),
    [
        (1.0, False, 1.0, 1e-6),
        (0.7, True, 1.0, 1e-6),
        (2.5, False, 0.0, 1e-6),
        (1.0, True, 100.0, 1e-4),  # float32 resolves logits of a thousand to 6e-5
        (0.1, False, 30.0, 1e-4),
    ],
)
def test_a_frozen_output_layer_gives_the_values_and_gradients_of_float64(
    temperature: float,
    bias: bool,
    scale: float,
    tolerance: float,
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All logits equal, and logits of some thousands, are among them."""
    monkeypatch.setattr(module, "CPU_CHUNK_ELEMENTS", chunk * VOCABULARY)
    states, _, targets = weights(11, HIDDEN, VOCABULARY)
    head = frozen_head(bias=bias, scale=scale)
    assert_near(
        found(states, targets, head, temperature), exact(states, targets, head, temperature), tolerance
    )


def test_a_frozen_output_layer_and_a_trained_one_agree() -> None:
    states, _, targets = weights(11, HIDDEN, VOCABULARY)
    head = frozen_head(bias=True)
    frozen = found(states, targets, head, 0.5)
    assert_near(frozen, found(states, targets, lambda hidden: head(hidden), 0.5), 1e-6)
    trained = frozen_head(bias=True).requires_grad_(True)
    assert_near(frozen, found(states, targets, trained, 0.5), 1e-6)


@pytest.mark.parametrize("trained", ["weight", "bias"])
def test_an_output_layer_that_is_trained_gets_its_gradient(trained: str) -> None:
    states, _, targets = weights(11, HIDDEN, VOCABULARY)
    head = frozen_head(bias=True)
    getattr(head, trained).requires_grad_(True)
    leaf = states.clone().requires_grad_(True)
    token_logprobs(leaf, targets, head, temperature=1.0)[0].sum().backward()
    gradient = getattr(head, trained).grad
    shares = head(states).softmax(-1).detach()
    onehot = torch.nn.functional.one_hot(targets, VOCABULARY)
    expected = (onehot - shares).sum(0) if trained == "bias" else (onehot - shares).T @ states
    assert torch.allclose(gradient, expected, atol=1e-5)


def test_tokens_that_cannot_be_drawn_have_no_part_in_entropy_and_gradient() -> None:
    states, _, targets = weights(11, HIDDEN, VOCABULARY)
    head = frozen_head(bias=True)
    head.bias.data[20:] = float("-inf")
    few = torch.nn.Linear(HIDDEN, 20).requires_grad_(False)
    few.weight.data, few.bias.data = head.weight.data[:20], head.bias.data[:20]
    targets = targets % 20
    assert_near(found(states, targets, head, 0.9), exact(states, targets, few, 0.9), 2e-6)


def test_an_impossible_token_has_log_probability_minus_infinity() -> None:
    states, _, targets = weights(3, HIDDEN, VOCABULARY)
    head = frozen_head(bias=True)
    head.bias.data[int(targets[1])] = float("-inf")
    chosen, entropy, _ = found(states, targets, head, 1.0)
    assert chosen[1] == float("-inf")
    assert bool(entropy.isfinite().all())


def test_no_tokens_of_a_frozen_output_layer_are_not_an_error() -> None:
    states, targets = torch.zeros(0, HIDDEN), torch.zeros(0, dtype=torch.long)
    chosen, entropy, gradient = found(states, targets, frozen_head(), 1.0)
    assert chosen.shape == entropy.shape == (0,)
    assert gradient.shape == (0, HIDDEN)


def test_in_bfloat16_a_sure_token_keeps_its_small_gradient() -> None:
    """1 − p is rounded, not p: at p = 0.999 nothing would be left of it."""
    states, _, _ = weights(400, HIDDEN, VOCABULARY)
    head = frozen_head(scale=3.0).bfloat16()
    states = states.bfloat16()
    probability, targets = head(states).float().softmax(-1).max(-1)
    sure = (probability > 0.99) & (probability < 0.9995)
    states, targets = states[sure], targets[sure]
    assert len(targets) > 5
    plain = found(states, targets, lambda hidden: head(hidden), 1.0)
    frozen = found(states, targets, head, 1.0)
    assert frozen[2].dtype == torch.bfloat16
    for one, other in zip(frozen[2].double(), plain[2].double(), strict=True):
        assert float((one - other).norm()) < 0.02 * float(other.norm())


def test_an_entropy_with_a_gradient_is_not_taken_from_the_frozen_way() -> None:
    states, _, targets = weights(11, HIDDEN, VOCABULARY)
    leaf = states.clone().requires_grad_(True)
    head = frozen_head()
    _, entropy = token_logprobs(leaf, targets, head, temperature=1.0, entropy_gradient=True)
    (gradient,) = torch.autograd.grad(entropy.sum(), leaf)
    whole = states.clone().requires_grad_(True)
    log_all = head(whole).log_softmax(-1)
    (expected,) = torch.autograd.grad(-(log_all.exp() * log_all).sum(), whole)
    assert torch.allclose(gradient, expected, atol=1e-5)
