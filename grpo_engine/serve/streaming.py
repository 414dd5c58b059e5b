"""The torch sampler for single requests whose completions are read while they grow.

Each request has its own decoding, which pauses after every token (on a GPU, after every few). So several
requests take turns, and an abandoned one is simply dropped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.sampler.rows import steps
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler


@dataclass(frozen=True, slots=True)
class Growth:
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason | None
    """Set in the completion's last growth."""


class StreamingSampler(TorchSampler):
    """Samples from a policy that is no longer trained."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy, sample_budget=1, is_frozen=True)

    def grow(
        self, token_ids: Sequence[int], num_completions: int, sampling: Sampling
    ) -> Iterator[list[Growth]]:
        """A prompt's completions, piece by piece, with the tokens that training would draw.

        Must be used inside `policy.sampling()` and without gradient.
        """
        found: list[Growth] = []
        sent = [0] * num_completions

        def grown(row: int, tokens: list[int], logprobs: list[float], reason: FinishReason | None) -> None:
            new = slice(sent[row], None)
            found.append(Growth(row, tuple(tokens[new]), tuple(logprobs[new]), reason))
            sent[row] = len(tokens)

        def on_row(row: int, tokens: list[int], logprobs: list[float], stopped: bool) -> None:
            grown(row, tokens, logprobs, FinishReason.STOP if stopped else FinishReason.LENGTH)

        rows = self.rows([(0, sample) for sample in range(num_completions)], sampling, on_row)
        max_tokens = len(token_ids) + sampling.max_tokens
        depends_on_length = self.policy.fix_positions(max_tokens)
        for _ in steps(self._decoder(), [token_ids], num_completions, 1, rows):
            for row, length in zip(
                rows.live[rows.running].tolist(), rows.at[rows.running].tolist(), strict=True
            ):
                if length > sent[row]:
                    grown(row, rows.tokens[row, :length].tolist(), rows.logprobs[row, :length].tolist(), None)
            yield found
            found = []
            if depends_on_length:  # another request may have changed its positions
                self.policy.fix_positions(max_tokens)
