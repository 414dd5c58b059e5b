"""Which decoder a policy gets: the fastest one that `models/proof.py` accepts."""

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from grpo_engine.models.forward import supported_by_kernels
from grpo_engine.models.policy import Policy
from grpo_engine.models.proof import Choice
from grpo_engine.models.shared_prompt_attention import window_of
from grpo_engine.rollout.sampler.decoding import (
    CacheDecoder,
    Decoder,
    Kernels,
    OwnLayers,
    PlainDecoder,
    SharedDecoder,
    padded,
)

WINDOWED = "the cache that a group shares does not support attention windows"

MakeOn = Callable[[PreTrainedModel], Decoder]


def choose_decoder(policy: Policy, *, is_frozen: bool) -> tuple[Callable[[], Decoder], Choice]:
    """The fastest decoder that computes what the model's own forward pass does.

    If the policy `is_frozen`, its tensors are read once for all decodings.
    """
    model, proof = policy.model, policy.proof(_whole_rows)
    objection, is_refused = policy.forward.slower_because, policy.forward.is_refused
    if policy.shares_prompts and window_of(model.config) is not None:
        objection = WINDOWED
    for name, make_on in _candidates(policy).items():
        found = proof.objection(partial(_proof_logits, make_on))
        if found is None:
            make = _maker(policy, is_frozen=is_frozen) if name == "kernels" else partial(make_on, model)
            return make, Choice(name, objection, is_refused=is_refused)
        objection, is_refused = found, is_refused or name == "kernels"
    return lambda: PlainDecoder(model), Choice("whole_rows", objection, is_refused=is_refused)


def _candidates(policy: Policy) -> dict[str, MakeOn]:
    """The decoders by name, fastest first."""
    ways: dict[str, MakeOn] = {}
    if policy.shares_prompts and policy.fast is not None:
        ways["kernels"] = lambda model: SharedDecoder(model, Kernels(supported_by_kernels(model)))
    if policy.shares_prompts and window_of(policy.model.config) is None:
        ways["shared_prompts"] = lambda model: SharedDecoder(model, OwnLayers(model))
    ways["own_cache"] = CacheDecoder
    return ways


def _maker(policy: Policy, *, is_frozen: bool) -> Callable[[], Decoder]:
    """A function that makes decoders with the policy's own kernels."""
    assert policy.fast is not None
    fast = policy.fast
    kernels = cache(lambda: Kernels(fast)) if is_frozen else lambda: Kernels(fast)
    return lambda: SharedDecoder(policy.model, kernels())


PROMPTS = ((5, 9, 2, 7, 3), (4, 8))
TOKENS = (6, 1, 3)
KEPT = (0, 2, 3)
"""Rows that stay after the first token; each prompt has two."""


def _proof_logits(make_on: MakeOn, model: PreTrainedModel) -> Tensor:
    """Logits [S, V] of every step of a short decoding that one row leaves half-way."""
    decoder = make_on(model)
    steps = [decoder.start(PROMPTS, 2)]
    for position, token in enumerate(TOKENS):
        steps.append(decoder.step(torch.full((len(steps[-1]),), token, device=steps[-1].device)))
        if position == 0:
            kept = torch.tensor(KEPT, device=steps[-1].device)
            decoder.keep(kept)
            steps[-1] = steps[-1][kept]
    return torch.cat(steps)


def _whole_rows(model: PreTrainedModel) -> Tensor:
    """The same logits by one forward pass of the model."""
    rows = [[*prompt, *TOKENS] for prompt in PROMPTS for _ in range(2)]
    ids, mask = padded(rows, model.device, side="right")
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    first = mask.sum(1) - len(TOKENS) - 1
    steps = [torch.tensor(kept, device=model.device) for kept in (range(len(rows)), *[KEPT] * len(TOKENS))]
    return torch.cat([logits[kept, first[kept] + number] for number, kept in enumerate(steps)])
