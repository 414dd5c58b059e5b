"""Chunked log-probabilities and entropies against float64 on whole logits."""

from __future__ import annotations

import pytest
import torch

from grpo_engine import logprobs as module
from grpo_engine.logprobs import token_logprobs


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
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk * 13)
    states.requires_grad_(True)
    head.requires_grad_(True)
    chosen, entropy = token_logprobs(states, targets, lambda h: h @ head.T, temperature=0.5, vocab_size=13)
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
    chosen, entropy = token_logprobs(logits, torch.tensor([0]), lambda h: h, temperature=1.0, vocab_size=3)
    assert chosen.tolist() == [0.0]
    assert entropy.tolist() == [0.0]


def test_no_tokens_are_no_error() -> None:
    chosen, entropy = token_logprobs(
        torch.zeros(0, 4), torch.zeros(0, dtype=torch.long), lambda h: h, temperature=1.0, vocab_size=4
    )
    assert chosen.shape == entropy.shape == (0,)
