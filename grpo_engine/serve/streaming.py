"""The torch sampler for requests that come one by one and are read while they grow.

Each request is a decoding of its own that pauses after every token (on a GPU: every few), so that several
go on side by side by taking turns, and one that nobody wants any more is simply dropped.
Boundary: token ids; text is `text_stream.py`'s, the taking of turns `serving.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.sampler.decoding import choose_decoder
from grpo_engine.rollout.sampler.rows import Rows, steps
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler


@dataclass(frozen=True, slots=True)
class Growth:
    """What a completion has grown by."""

    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason | None
    """Set with its last tokens."""


class StreamingSampler(TorchSampler):
    """Of a policy that is not trained any more."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy, sample_budget=1)
        self._decoder = choose_decoder(policy, is_frozen=True)

    def grow(
        self, token_ids: Sequence[int], num_completions: int, sampling: Sampling
    ) -> Iterator[list[Growth]]:
        """A prompt's completions, with the tokens that a step of training would draw with this sampling.

        Used inside `policy.sampling()` and without gradient.
        """
        ended: list[Growth] = []
        told = [0] * num_completions

        def end(row: int, tokens: list[int], logprobs: list[float], stopped: bool) -> None:
            reason = FinishReason.STOP if stopped else FinishReason.LENGTH
            ended.append(Growth(row, tuple(tokens[told[row] :]), tuple(logprobs[told[row] :]), reason))

        rows = self.rows([0], num_completions, sampling, end)
        for _ in steps(self._decoder(), [token_ids], num_completions, 1, rows):
            news = ended + _of_running(rows, told)
            ended.clear()
            for growth in news:
                told[growth.index] += len(growth.token_ids)
            yield news


def _of_running(rows: Rows, told: Sequence[int]) -> list[Growth]:
    """New tokens of the completions that go on."""
    found = []
    for row, length, is_running in zip(
        rows.live.tolist(), rows.at.tolist(), rows.running.tolist(), strict=True
    ):
        if is_running and length > told[row]:
            new = slice(told[row], length)
            tokens, logprobs = rows.tokens[row, new].tolist(), rows.logprobs[row, new].tolist()
            found.append(Growth(row, tuple(tokens), tuple(logprobs), None))
    return found
