"""Sampling with the training model itself: any device, no further dependency.

Each prompt is computed once for its group, finished rows leave the batch, and the drawn token does not
depend on which rows are computed together (`base.uniforms`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from grpo_engine.errors import DeviceMemoryError
from grpo_engine.policy import PROOF_TOLERANCE, Policy
from grpo_engine.records import FinishReason
from grpo_engine.sampler.base import Sampling, uniforms
from grpo_engine.sampler.decoding import choose_decoder
from grpo_engine.types import Completion, Group, Prompt

LARGEST_UNIFORM = 1 - 2**-22
"""Below 1 by enough that u · Σp stays below Σp in float32."""
KEEP_BELOW = 0.85
"""Finished rows leave when fewer than this share of the rows still run: leaving copies the cache."""


class TorchSampler:
    def __init__(self, policy: Policy, sample_budget: int) -> None:
        self.policy = policy
        self.sample_budget = sample_budget
        self.version = 0
        self._decoder = choose_decoder(
            policy.model,
            policy.pad_token_id,
            shares_prompts=policy.shares_prompts,
            tolerance=PROOF_TOLERANCE[policy.compute_dtype],
        )

    def load_policy(self, version: int) -> None:
        """The weights are shared with the trainer, so only the version moves."""
        self.version = version

    def generate(self, prompts_P: Sequence[Prompt], group_size: int, sampling: Sampling) -> list[Group]:
        """P prompts → P groups; as many prompts at a time as the sample budget (and the memory) allows.

        Raises DeviceMemoryError where not even one group fits.
        """
        groups: list[Group] = []
        with torch.no_grad(), self.policy.sampling():
            while len(groups) < len(prompts_P):
                start, at_once = len(groups), max(1, self.sample_budget // group_size)
                chunk = prompts_P[start : start + at_once]
                try:
                    groups += self._generate_chunk(chunk, start, group_size, sampling)
                except torch.OutOfMemoryError as error:
                    if len(chunk) == 1:
                        raise DeviceMemoryError("one group does not fit the device's memory") from error
                    torch.cuda.empty_cache()
                    self.sample_budget = group_size * (len(chunk) // 2)
        return groups

    def _generate_chunk(
        self, prompts: Sequence[Prompt], first: int, group_size: int, sampling: Sampling
    ) -> list[Group]:
        rows = len(prompts) * group_size
        draws = None
        if sampling.temperature > 0:
            numbers = [
                uniforms(sampling.seed, sampling.step, first + p, g, sampling.max_tokens)
                for p in range(len(prompts))
                for g in range(group_size)
            ]
            draws = torch.from_numpy(np.stack(numbers)).to(self.policy.device).clamp_(max=LARGEST_UNIFORM)
        tokens, logprobs, lengths = self._decode([p.token_ids for p in prompts], group_size, sampling, draws)
        made = [
            self._completion(tokens[row, : lengths[row]], logprobs[row, : lengths[row]])
            for row in range(rows)
        ]
        return [
            Group(prompt, tuple(made[i * group_size : (i + 1) * group_size]))
            for i, prompt in enumerate(prompts)
        ]

    def _decode(
        self, prompts: Sequence[Sequence[int]], group_size: int, sampling: Sampling, draws: Tensor | None
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Token ids and log-probabilities [B, longest], and the length of each row."""
        decoder = self._decoder()
        logits = decoder.start(prompts, group_size)
        count, device = len(logits), logits.device
        tokens = torch.zeros(count, sampling.max_tokens, dtype=torch.long, device=device)
        logprobs = torch.zeros(count, sampling.max_tokens, device=device)
        lengths = torch.full((count,), sampling.max_tokens, device=device)
        live = torch.arange(count, device=device)
        running = torch.ones(count, dtype=torch.bool, device=device)
        for position in range(sampling.max_tokens):
            uniform = None if draws is None else draws[live, position]
            token, logprob = choose(logits, uniform, sampling.temperature)
            tokens[live, position], logprobs[live, position] = token, logprob
            ended = running & torch.isin(token, self.policy.stop_ids)
            lengths[live[ended]] = position + 1
            running = running & ~ended
            left = int(running.sum())
            if left == 0 or position + 1 == sampling.max_tokens:
                break
            if left < KEEP_BELOW * len(live):
                rows = running.nonzero().squeeze(1)
                decoder.keep(rows)
                live, token, running = live[rows], token[rows], running[rows]
            logits = decoder.step(token)
        return tokens.cpu(), logprobs.cpu(), lengths.tolist()

    def _completion(self, tokens: Tensor, logprobs: Tensor) -> Completion:
        token_ids = tuple(tokens.tolist())
        stopped = bool(token_ids) and token_ids[-1] in self.policy.stop_set
        text_ids = token_ids[:-1] if stopped else token_ids
        return Completion(
            text=self.policy.decode(text_ids),
            token_ids=token_ids,
            logprobs=tuple(logprobs.tolist()),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            policy_version=self.version,
        )


def choose(logits_B: Tensor, uniforms_B: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    """Next token [B] and its log-probability [B] from logits [B, V].

    By inverse CDF: the first token whose cumulative probability exceeds the row's uniform number. Greedy
    where there are no uniforms; its log-probability is then that of temperature 1.
    """
    logits = logits_B.float() if uniforms_B is None else logits_B.float() / temperature
    log_all = logits.log_softmax(-1)
    if uniforms_B is None:
        token = log_all.argmax(-1)
    else:
        cumulative = log_all.exp().cumsum(-1)
        target = uniforms_B[:, None] * cumulative[:, -1:]
        token = torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=logits.shape[1] - 1)
    return token, log_all.gather(1, token[:, None]).squeeze(1)
