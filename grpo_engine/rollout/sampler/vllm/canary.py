"""The canary: a proof after each hand-over that vLLM serves the trained policy.

A few fixed tokens go through both. Their log-probabilities must agree, and if the trainer's have moved since
the last version, vLLM's must have moved too. The second condition detects a stale adapter at once, long
before its drift exceeds the usual difference of two implementations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from grpo_engine.contract.errors import PolicyMismatchError
from grpo_engine.models.policy import Policy
from grpo_engine.objective.packing import TrainingGroup, pack

CANARY_TEXT = "17 + 25 = 42; the quick brown fox (age 3) jumps over 1 lazy dog."
CANARY_TOKENS = 32
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
"""Largest mean difference of a token's log-probability between trainer and server, in nats."""
MOVED_SHARE = 0.05
"""The server is stale if its log-probabilities changed by less than this share of the trainer's change."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The canary's log-probabilities [T] by trainer and server."""

    version: int | None
    """Policy version; None: the base model without its adapter."""
    trained_T: tuple[float, ...]
    served_T: tuple[float, ...]

    @property
    def name(self) -> str:
        return "the base model" if self.version is None else f"policy version {self.version}"


def canary_tokens(policy: Policy) -> tuple[int, ...]:
    return tuple(policy.tokenizer(CANARY_TEXT)["input_ids"][:CANARY_TOKENS])


def trained_logprobs(policy: Policy, token_ids: Sequence[int]) -> tuple[float, ...]:
    """Log-probabilities of the tokens after the first, by the trainer's own forward pass."""
    group = TrainingGroup.of(tuple(token_ids[:1]), tuple(token_ids[1:]))
    batch = next(pack([group], len(token_ids), policy.device))
    with torch.no_grad():
        return tuple(policy.logprobs(batch)[0].tolist())


def prove(now: Reading, before: Reading | None, dtype: torch.dtype) -> None:
    """Raises PolicyMismatchError if the server does not serve the weights that it received."""
    if before is not None and _is_stale(now, before):
        raise PolicyMismatchError(
            f"vLLM still serves {before.name}, not {now.name}", evidence=_evidence(now, before)
        )
    distance = _distance(now.trained_T, now.served_T)
    if not distance <= TOLERANCE[dtype]:
        raise PolicyMismatchError(
            f"vLLM does not serve the trainer's weights as {now.name}: log-probabilities differ by "
            f"{distance:.3g} on average (limit: {TOLERANCE[dtype]})",
            evidence=_evidence(now, before),
        )


def _is_stale(now: Reading, before: Reading) -> bool:
    """Whether the trainer's log-probabilities changed for most tokens and the server's did not."""
    changed = sum(new != old for new, old in zip(now.trained_T, before.trained_T, strict=True))
    trained = _distance(now.trained_T, before.trained_T)
    served = _distance(now.served_T, before.served_T)
    return 2 * changed > len(now.trained_T) and served < MOVED_SHARE * trained


def _distance(left_T: Sequence[float], right_T: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(left_T, right_T, strict=True)) / max(1, len(left_T))


def _evidence(now: Reading, before: Reading | None) -> tuple[str, ...]:
    found = [f"trainer and vLLM on {now.name}: {_distance(now.trained_T, now.served_T):.3g} nats a token"]
    if before is not None:
        found.append(
            f"since {before.name} the trainer changed by {_distance(now.trained_T, before.trained_T):.3g}, "
            f"vLLM by {_distance(now.served_T, before.served_T):.3g}"
        )
    return tuple(found)
