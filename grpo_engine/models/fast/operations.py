"""Operations between the matrix products: compiled if the library takes the tensors, otherwise torch's.

Elsewhere only `reordered.py` (for each weight) and the sampler's `RowCache` decide between the two. Values
only, without gradient; the autograd functions are in `kernels.py` and `logprobs.py`. The two round
differently in the last bits.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad, silu

from grpo_engine.models.fast import native
from grpo_engine.models.fast.fused import fused

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
        return native.rms_norm(x, at_least_float32(weight), epsilon)
    return _normed(x, weight, epsilon)


@fused
def _normed(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    wide = at_least_float32(x)
    return (wide * _inverse_rms(wide, epsilon) * at_least_float32(weight)).to(x.dtype)


def rms_norm_back(
    x: Tensor, weight: Tensor, grad: Tensor, epsilon: float, of_x: bool, of_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of x and of the weight, None if not wanted."""
    if native.takes(x, grad) and not of_weight:
        return native.rms_norm_back(x, at_least_float32(weight), grad, epsilon), None
    grad_x = _normed_back(x, weight, grad, epsilon) if of_x else None
    return grad_x, _normed_back_of_weight(x, weight, grad, epsilon) if of_weight else None


@fused
def _normed_back(x: Tensor, weight: Tensor, grad: Tensor, epsilon: float) -> Tensor:
    """dx = i·(dŷ − x·i²·mean(dŷ·x)) with dŷ = dy·w and i the inverse root."""
    wide, scaled = at_least_float32(x), at_least_float32(grad) * at_least_float32(weight)
    inverse = _inverse_rms(wide, epsilon)
    along = (scaled * wide).mean(-1, keepdim=True) * inverse.square()
    return ((scaled - wide * along) * inverse).to(x.dtype)


@fused
def _normed_back_of_weight(x: Tensor, weight: Tensor, grad: Tensor, epsilon: float) -> Tensor:
    wide = at_least_float32(x)
    made = at_least_float32(grad) * wide * _inverse_rms(wide, epsilon)
    return made.flatten(0, -2).sum(0).to(weight.dtype)


def scores_of(queries: Tensor, keys: Tensor) -> Tensor:
    """Products [B, M, D] × [B, N, D] → [B, M, N], in float32 at least.

    Rounded to bfloat16, a trained model's scores would be off by up to a quarter.
    """
    if queries.is_cuda and queries.dtype in (torch.bfloat16, torch.float16):
        return torch.bmm(queries, keys.transpose(1, 2), out_dtype=torch.float32)
    return torch.bmm(at_least_float32(queries), at_least_float32(keys).transpose(1, 2))


def at_least_float32(x: Tensor) -> Tensor:
    """The tensor in float32, or unchanged if its type is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _inverse_rms(wide: Tensor, epsilon: float) -> Tensor:
    """[…, 1]."""
    return (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """x [T, H, D], cosine and sine [T, 1, D], the sine negative for the first half."""
    if native.takes(x, cosine, sine):
        return native.rotated(x, cosine, sine)
    return _rotated(x, cosine, sine)


@fused
def _rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    return x.roll(x.shape[-1] // 2, -1) * sine + x * cosine


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up, both [T, W]."""
    if gate.stride() == up.stride() and native.takes(gate, up):
        return native.swiglu(gate, up)
    return _swiglu(gate, up)


@fused
def _swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return silu(gate) * up


def swiglu_back(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of gate and up."""
    if gate.stride() == up.stride() and native.takes(gate, up, grad):
        return native.swiglu_back(gate, up, grad)
    return _swiglu_back(gate, up, grad)


@fused
def _swiglu_back(gate: Tensor, up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.aten.silu_backward(grad * up, gate), silu(gate) * grad


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
    """First place [B, 1] at which cumulative sums [B, n] exceed the target; at most the last place that
    adds to them."""
    found = torch.searchsorted(cumulative, target, right=True)
    return found.minimum(torch.searchsorted(cumulative, cumulative[:, -1:].contiguous()))


def logprobs_and_gradients(
    logits: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities [N], entropies [N], and p − 1 at each target, p elsewhere [N, V].

    The slopes may overwrite the logits. p − 1 is rounded once, because rounded p and 1 would cancel.
    """
    if native.takes(logits) and logits.is_contiguous():
        return *native.logprobs(logits, targets, temperature), logits
    return _logprobs_and_gradients(logits, targets, temperature)


@fused
def _logprobs_and_gradients(
    logits: Tensor, targets: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    log_all = (logits.float() / temperature).log_softmax(-1)
    shares = log_all.exp()
    entropy = -(shares * log_all.clamp(min=LEAST_LOGPROB)).sum(-1)
    is_target = torch.arange(logits.shape[1], device=logits.device) == targets[:, None]
    slopes = torch.where(is_target, shares - 1, shares).to(logits.dtype)
    return log_all.gather(1, targets[:, None]).squeeze(1), entropy, slopes
