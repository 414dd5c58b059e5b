"""The divergence from a teacher: chunked as dense, no gradient for the teacher, buckets never give more."""

import pytest
import torch

from grpo_engine.models import distillation
from grpo_engine.models.distillation import kl_to_teacher

V, H = 40, 16


@pytest.fixture
def states() -> tuple[torch.Tensor, torch.Tensor, torch.nn.Linear]:
    generator = torch.Generator().manual_seed(2)
    pupil, teacher = (torch.randn(23, H, generator=generator) * 2 for _ in range(2))
    torch.manual_seed(4)
    return pupil.requires_grad_(), teacher.requires_grad_(), torch.nn.Linear(H, V, bias=False)


def dense_kl(pupil: torch.Tensor, teacher: torch.Tensor, head: torch.nn.Linear, heat: float) -> torch.Tensor:
    p = (head(pupil) / heat).softmax(-1)
    q = (torch.nn.functional.linear(teacher, head.weight.detach()) / heat).softmax(-1).detach()
    return (p * (p.log() - q.log())).sum(-1)


@pytest.mark.parametrize("chunk", [2**24, 5 * V])
def test_the_chunked_divergence_and_its_gradient_are_the_dense_ones(
    states: tuple[torch.Tensor, torch.Tensor, torch.nn.Linear], monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    pupil, teacher, head = states
    monkeypatch.setattr(distillation, "CHUNK_ELEMENTS", chunk)
    expected = dense_kl(pupil, teacher, head, 0.7)
    wanted = torch.autograd.grad(expected.sum(), [pupil, head.weight])
    targets = torch.arange(23)
    found, logprobs = kl_to_teacher(pupil, teacher, targets, head, temperature=0.7)
    got = torch.autograd.grad(found.sum(), [pupil, head.weight], retain_graph=True)
    assert float((found - expected).detach().abs().max()) < 1e-6
    assert all(float((a - b).abs().max()) < 1e-5 for a, b in zip(got, wanted, strict=True))
    dense = (head(pupil) / 0.7).log_softmax(-1)[targets, targets]
    assert float((logprobs - dense).detach().abs().max()) < 1e-5
    assert not logprobs.requires_grad
    assert torch.autograd.grad(found.sum(), [teacher], allow_unused=True) == (None,)


def test_the_likeliest_tokens_and_one_for_all_others_give_a_smaller_divergence_that_grows_to_the_whole(
    states: tuple[torch.Tensor, torch.Tensor, torch.nn.Linear],
) -> None:
    pupil, teacher, head = states
    given = pupil, teacher, torch.zeros(23, dtype=torch.long), head
    whole, _ = kl_to_teacher(*given, temperature=1.0)
    parts = [kl_to_teacher(*given, temperature=1.0, top_k=k)[0] for k in (1, 5, V - 1, V)]
    for smaller, larger in zip(parts, [*parts[1:], whole], strict=True):
        assert bool((smaller <= larger + 1e-5).all())
    assert float((parts[0] - whole).detach().abs().max()) > 0.1
    assert float((parts[2] - whole).detach().abs().max()) < 1e-5
    assert torch.equal(parts[3], whole)
    gradient = torch.autograd.grad(parts[1].sum(), pupil)[0]
    assert bool(gradient.isfinite().all())


def test_one_bucket_against_all_others_is_the_divergence_of_two_outcomes() -> None:
    p, q = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.1, 0.7, 0.2]])
    token = torch.tensor([0])
    found, _ = kl_to_teacher(p.log(), q.log(), token, lambda logits: logits, temperature=1.0, top_k=1)
    expected = 0.3 * torch.log(torch.tensor(0.3 / 0.7)) + 0.7 * torch.log(torch.tensor(0.7 / 0.3))
    assert float(found) == pytest.approx(float(expected), abs=1e-6)
