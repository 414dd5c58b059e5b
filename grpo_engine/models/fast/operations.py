"""Operations between the matrix products: compiled if the library takes the tensors, otherwise torch's.

The only place that decides between the two. Values only, without gradient; the autograd functions are in
`kernels.py` and `logprobs.py`. The two round differently in the last bits.
"""

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad, silu

from grpo_engine.models.fast import native

BLOCK = 128
"""Tokens in a block whose probabilities are summed first, so that only one block of each row is searched
token by token."""
LEAST_LOGPROB = -1e4
"""Replaces −∞ in an entropy, because 0 · −∞ is not a number."""


def compiled_version() -> str:
    """Version of the compiled library, or "none"."""
    return "none" if native.library() is None else str(native.VERSION)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """x [T, W] with weight [W], or [T, H, D] with weight [D] or [H, D]."""
    if native.takes(x):
        return native.rms_norm(x, at_least_single(weight), epsilon)
    wide = _wide(x)
    return wide.mul_(_inverse_rms(wide, epsilon)).mul_(weight.to(wide.dtype)).to(x.dtype)


def rms_norm_back(
    x: Tensor, weight: Tensor, grad: Tensor, epsilon: float, of_x: bool, of_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of x and of the weight, None if not wanted.

    dx = i·(dŷ − x·i²·mean(dŷ·x)) with dŷ = dy·w and i the inverse root.
    """
    if native.takes(x, grad) and not of_weight:
        return native.rms_norm_back(x, at_least_single(weight), grad, epsilon), None
    wide, scaled = _wide(x), _wide(grad)
    inverse = _inverse_rms(wide, epsilon)
    grad_weight = None
    if of_weight:
        rows = tuple(range(grad.dim() - 1))
        grad_weight = (scaled * wide * inverse).sum(rows).to(weight.dtype)
    if not of_x:
        return None, grad_weight
    scaled.mul_(weight.to(wide.dtype))
    along = torch.linalg.vecdot(scaled, wide)[..., None].mul_(inverse.square()).div_(-x.shape[-1])
    return scaled.addcmul_(wide, along).mul_(inverse).to(x.dtype), grad_weight


def scores_of(queries: Tensor, keys: Tensor) -> Tensor:
    """Products [B, M, D] × [B, N, D] → [B, M, N], in float32 at least.

    Rounded to bfloat16, a trained model's scores would be off by up to a quarter.
    """
    if queries.is_cuda and queries.dtype in (torch.bfloat16, torch.float16):
        return torch.bmm(queries, keys.transpose(1, 2), out_dtype=torch.float32)
    return torch.bmm(at_least_single(queries), at_least_single(keys).transpose(1, 2))


def at_least_single(x: Tensor) -> Tensor:
    """The tensor in float32, or unchanged if its type is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _wide(x: Tensor) -> Tensor:
    """A copy in float32 at least, because on a CPU mixed dtypes make an operation several times slower."""
    return x.to(torch.promote_types(x.dtype, torch.float32), copy=True)


def _inverse_rms(wide: Tensor, epsilon: float) -> Tensor:
    """[…, 1]."""
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    floor = _scalar(epsilon, wide.dtype, wide.device)
    return torch.addcmul(floor, length, length, value=1 / wide.shape[-1]).rsqrt_()


@cache
def _scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(value, dtype=dtype, device=device)


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x [T, H, D], cosine and sine [T, 1, D], the sine negative for the first half."""
    if native.takes(x, cosine, sine):
        return native.rotated(x, cosine, sine)
    return x.roll(x.shape[-1] // 2, -1).mul_(sine).add_(x * cosine)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up, both [T, W]."""
    if gate.stride() == up.stride() and native.takes(gate, up):
        return native.swiglu(gate, up)
    return silu(gate).mul_(up)


def swiglu_back(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of gate and up."""
    if gate.stride() == up.stride() and native.takes(gate, up, grad):
        return native.swiglu_back(gate, up, grad)
    return torch.ops.aten.silu_backward(grad * up, gate), silu(gate).mul_(grad)


def attend(
    states: native.States,
    buffers: tuple[Tensor, Tensor, Tensor],
    length: int,
    scale: float,
    prompts: native.Shared,
    by_torch: Callable[[], Tensor],
) -> Tensor:
    """Attention [B, Hq · D] of one new token per row, whose key and value go to column `length - 1`."""
    if native.takes_heads(states, prompts):
        return native.attend(states, buffers, length, scale, prompts)
    return by_torch()


def draw(logits_B: Tensor, uniforms_B: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Logits [B, V] and uniform numbers [B] → the first token [B] whose cumulative probability exceeds the
    number, and its log-probability [B]."""
    if native.takes(logits_B):
        return native.draw(logits_B, uniforms_B, temperature)
    batch, vocab = logits_B.shape
    blocks = -(-vocab // BLOCK)
    shares = logits_B.to(torch.float32, copy=True)
    if missing := blocks * BLOCK - vocab:
        shares = pad(shares, (0, missing), value=float("-inf"))
    if temperature != 1:
        shares.div_(temperature)
    shares.sub_(shares.amax(-1, keepdim=True)).exp_()
    by_block = shares.view(batch, blocks, BLOCK)
    ends = by_block.sum(-1).cumsum(-1)
    total = ends[:, -1:]
    target = uniforms_B[:, None] * total
    block = _first_beyond(ends, target)
    before = ends.gather(1, (block - 1).clamp_(min=0)) * (block > 0)
    inside = by_block.gather(1, block[:, :, None].expand(-1, -1, BLOCK)).squeeze(1)
    token = block * BLOCK + _first_beyond(inside.cumsum(-1), target - before)
    return token.squeeze(1), (shares.gather(1, token).log() - total.log()).squeeze(1)


def _first_beyond(cumulative: Tensor, target: Tensor) -> Tensor:
    """First place [B, 1] at which cumulative sums [B, n] exceed the target; at most the last that adds."""
    found = torch.searchsorted(cumulative, target, right=True)
    return found.minimum(torch.searchsorted(cumulative, cumulative[:, -1:].contiguous()))


def logprobs_and_slopes(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities [N], entropies [N], and p − 1 at each target, p elsewhere [N, V].

    The slopes overwrite the logits. p − 1 is rounded once, because rounded p and 1 would cancel.
    """
    if native.takes(logits) and logits.is_contiguous():
        return *native.logprobs(logits, targets, temperature), logits
    wide = logits.float()
    wide.div_(temperature).sub_(wide.amax(-1, keepdim=True))
    shares = wide.exp()
    total = shares.sum(-1)
    shares.div_(total[:, None])
    chosen = wide.gather(1, targets[:, None]).squeeze(1) - total.log()
    # −Σ p log p = log Z − Σ p · logit
    entropy = total.log() - torch.linalg.vecdot(shares, wide.clamp_(min=LEAST_LOGPROB))
    shares.scatter_(1, targets[:, None], -1.0, reduce="add")
    return chosen, entropy, shares.to(logits.dtype)
