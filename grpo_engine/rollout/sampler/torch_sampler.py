"""Sampling with the training model itself: any device, no further dependency.

Each prompt is computed once for its group, finished rows leave the batch and waiting prompts take their
places. The drawn token does not depend on which rows are computed together (`base.uniforms`).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from grpo_engine.contract.errors import DeviceMemoryError
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Group, Prompt
from grpo_engine.parallel.shards import gathered_weights
from grpo_engine.rollout.sampler.base import GroupAssembly, OnGroup, Sampling, finished_completion, uniforms
from grpo_engine.rollout.sampler.decoder_choice import choose_decoder
from grpo_engine.rollout.sampler.rows import OnRow, Rows, steps

LARGEST_UNIFORM = 1 - 2**-22
"""Below 1 by enough that u · Σp stays below Σp in float32."""


class TorchSampler:
    shares_weights = True

    def __init__(self, policy: Policy, sample_budget: int, *, is_frozen: bool = False) -> None:
        """`sample_budget`: completions sampled at once; `is_frozen`: the policy no longer changes."""
        self.policy = policy
        self.sample_budget = sample_budget
        self.version = 0
        with gathered_weights(policy.model):
            self._decoder, policy.decoder = choose_decoder(policy, is_frozen=is_frozen)

    def load_policy(self, version: int) -> None:
        self.version = version  # the weights are the trainer's own

    def rest(self) -> None:
        """Nothing to release: the weights are the trainer's own."""

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        """P prompts → P groups; samples as many completions at a time as the sample budget and memory allow.

        Raises DeviceMemoryError if a single group does not fit.
        """
        groups = GroupAssembly(prompts_P, group_size, on_group)
        with torch.no_grad(), self.policy.sampling():
            while missing := groups.missing():
                try:
                    self._sample(groups, missing, sampling)
                except torch.OutOfMemoryError as error:
                    if self.sample_budget <= group_size:
                        raise DeviceMemoryError("one group does not fit the device's memory") from error
                    torch.cuda.empty_cache()
                    self.sample_budget = max(group_size, self.sample_budget // 2)
        return groups.groups()

    def _sample(self, groups: GroupAssembly, places: Sequence[int], sampling: Sampling) -> None:
        size = groups.group_size

        def on_row(row: int, tokens: list[int], logprobs: list[float], stopped: bool) -> None:
            completion = finished_completion(self.policy, self.version, tokens, logprobs, stopped=stopped)
            groups.add(places[row // size], row % size, completion)

        rows = self.rows(places, size, sampling, on_row)
        ids = [groups.prompts_P[place].token_ids for place in places]
        for _ in steps(self._decoder(), ids, size, max(1, self.sample_budget // size), rows):
            pass

    def rows(self, places: Sequence[int], group_size: int, sampling: Sampling, on_row: OnRow) -> Rows:
        return Rows(
            limits=[sampling.limit(place) for place in places for _ in range(group_size)],
            draws=self._draws(places, group_size, sampling),
            sampling=sampling,
            policy=self.policy,
            on_row=on_row,
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
