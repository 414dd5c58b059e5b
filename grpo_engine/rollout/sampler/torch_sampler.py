"""Sampling with the training model itself: any device, no further dependency.

Each prompt is computed once for its group, finished rows leave the batch and waiting prompts take their
places; the drawn token does not depend on which rows are computed together (`base.uniforms`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from grpo_engine.contract.errors import DeviceMemoryError
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt
from grpo_engine.rollout.sampler.base import OnGroup, Sampling, uniforms
from grpo_engine.rollout.sampler.decoding import choose_decoder
from grpo_engine.rollout.sampler.rows import Ended, Rows, decode

LARGEST_UNIFORM = 1 - 2**-22
"""Below 1 by enough that u · Σp stays below Σp in float32."""


class TorchSampler:
    shares_weights = True

    def __init__(self, policy: Policy, sample_budget: int) -> None:
        self.policy = policy
        self.sample_budget = sample_budget
        self.version = 0
        self._decoder = choose_decoder(policy)

    def load_policy(self, version: int) -> None:
        """The weights are shared with the trainer, so only the version moves."""
        self.version = version

    def rest(self) -> None:
        """Nothing to give back: the weights are the trainer's own."""

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        """P prompts → P groups; as many completions side by side as the sample budget (or memory) allows.

        Raises DeviceMemoryError where not even one group fits.
        """
        groups: dict[int, Group] = {}

        def finished(place: int, group: Group) -> None:
            groups[place] = group
            if on_group is not None:
                on_group(place, group)

        with torch.no_grad(), self.policy.sampling():
            while missing := [place for place in range(len(prompts_P)) if place not in groups]:
                try:
                    self._sample(prompts_P, missing, group_size, sampling, finished)
                except torch.OutOfMemoryError as error:
                    if self.sample_budget <= group_size:
                        raise DeviceMemoryError("one group does not fit the device's memory") from error
                    torch.cuda.empty_cache()
                    self.sample_budget = max(group_size, self.sample_budget // 2)
        return [groups[place] for place in range(len(prompts_P))]

    def _sample(
        self,
        prompts_P: Sequence[Prompt],
        places: Sequence[int],
        group_size: int,
        sampling: Sampling,
        finished: OnGroup,
    ) -> None:
        """The groups of these prompts; `finished` is told of each."""
        made: dict[int, Completion] = {}

        def ended(row: int, tokens: list[int], logprobs: list[float], stopped: bool) -> None:
            made[row] = self._completion(tokens, logprobs, stopped)
            members = range(row - row % group_size, row - row % group_size + group_size)
            if all(member in made for member in members):
                place = places[row // group_size]
                finished(place, Group(prompts_P[place], tuple(made[member] for member in members)))

        rows = self.rows(places, group_size, sampling, ended)
        ids = [prompts_P[place].token_ids for place in places]
        decode(self._decoder(), ids, group_size, max(1, self.sample_budget // group_size), rows)

    def rows(self, places: Sequence[int], group_size: int, sampling: Sampling, ended: Ended) -> Rows:
        """Empty rows for the groups of the prompts at these places."""
        return Rows(
            limits=torch.tensor([sampling.limit(place) for place in places for _ in range(group_size)]),
            draws=self._draws(places, group_size, sampling),
            sampling=sampling,
            policy=self.policy,
            ended=ended,
        )

    def _draws(self, places: Sequence[int], group_size: int, sampling: Sampling) -> Tensor | None:
        """Uniform numbers [rows, max_tokens]; None for greedy decoding."""
        if sampling.temperature == 0:
            return None
        streams = [sampling.stream(place, sample) for place in places for sample in range(group_size)]
        numbers = [
            uniforms(sampling.seed, sampling.step, prompt, sample, sampling.max_tokens, turn=turn)
            for prompt, sample, turn in streams
        ]
        return torch.from_numpy(np.stack(numbers)).to(self.policy.device).clamp_(max=LARGEST_UNIFORM)

    def _completion(self, tokens: list[int], logprobs: list[float], stopped: bool) -> Completion:
        at_end = bool(tokens) and tokens[-1] in self.policy.stop_set
        return Completion(
            text=self.policy.decode(tokens[:-1] if at_end else tokens),
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            policy_version=self.version,
        )
