"""Sampling with the training model itself: any device, no further dependency.

Each prompt is computed once for its group, finished rows leave the batch and waiting prompts take their
places. The drawn token does not depend on which rows are computed together (`base.uniforms`).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch

from grpo_engine.contract.errors import DeviceMemoryError
from grpo_engine.models.device_memory import free_bytes
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Group, Prompt
from grpo_engine.parallel.shards import gathered_weights
from grpo_engine.rollout.sampler.base import (
    GroupAssembly,
    NextTurn,
    OnGroup,
    OnTurn,
    Sampling,
    finished_completion,
)
from grpo_engine.rollout.sampler.cache_size import group_bytes, groups_that_fit
from grpo_engine.rollout.sampler.decoder_choice import choose_decoder
from grpo_engine.rollout.sampler.rows import OnRow, Rows, steps
from grpo_engine.rollout.sampler.turns import TurnQueue


class TorchSampler:
    matches_trainer = True

    def __init__(self, policy: Policy, sample_budget: int, *, is_frozen: bool = False) -> None:
        """`sample_budget`: completions sampled at once; `is_frozen`: the policy no longer changes."""
        self.policy = policy
        self.sample_budget = sample_budget
        self.version = 0
        with gathered_weights(policy.model):
            self._decoder, policy.decoder = choose_decoder(policy, is_frozen=is_frozen)

    def load_policy(self, version: int) -> None:
        self.version = version  # the weights are the trainer's own

    def rest(self) -> dict[str, float]:
        return {}  # nothing to release: the weights are the trainer's own

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
                draw = partial(self._sample, groups, _largest_class(missing), sampling)
                self._or_take_fewer(draw, fewest=group_size)
        return groups.groups()

    def _or_take_fewer(self, draw: Callable[[], None], *, fewest: int) -> None:
        """Draw samples; if memory runs out, halve the sample budget. Finished completions are kept.

        Raises DeviceMemoryError if the budget is already `fewest`.
        """
        try:
            draw()
            return
        except torch.OutOfMemoryError as error:
            problem = str(error)[:500]
        # Not while the error is handled, because its traceback holds the decoder's tensors.
        if self.sample_budget <= fewest:
            raise DeviceMemoryError("one group does not fit the device's memory", evidence=(problem,))
        torch.cuda.empty_cache()
        self.sample_budget = max(fewest, self.sample_budget // 2)

    def _sample(
        self, groups: GroupAssembly, samples: Mapping[int, Sequence[int]], sampling: Sampling
    ) -> None:
        """Draw samples. `samples`: place of a group → numbers of its samples, equally many for each group."""
        streams = [(place, sample) for place, drawn in samples.items() for sample in drawn]

        def on_row(row: int, tokens: list[int], logprobs: list[float], stopped: bool) -> None:
            completion = finished_completion(self.policy, self.version, tokens, logprobs, stopped=stopped)
            groups.add(*streams[row], completion)

        rows = self.rows(streams, sampling, on_row)
        ids = [groups.prompts_P[place].token_ids for place in samples]
        size, decoder = len(streams) // len(ids), self._decoder()
        at_once = self._at_once(len(ids), max(map(len, ids)), size, sampling.max_tokens)
        for _ in steps(decoder, ids, size, at_once, rows):
            pass

    def sample_turns(self, turns: TurnQueue, sampling: Sampling, on_turn: OnTurn) -> None:
        """Sample turns together, each from when it is ready. Raises DeviceMemoryError if one does not fit."""
        left: dict[int, NextTurn] = {}
        with torch.no_grad(), self.policy.sampling():
            while left := left or dict(enumerate(turns.wait() or ())):
                left = dict(enumerate(left.values()))
                self._or_take_fewer(partial(self._sample_turns, left, turns, sampling, on_turn), fewest=1)

    def _sample_turns(
        self, left: dict[int, NextTurn], turns: TurnQueue, sampling: Sampling, on_turn: OnTurn
    ) -> None:
        """Sample the turns in `left`, by row, and those that become ready; finished ones are removed."""

        def on_row(row: int, tokens: list[int], logprobs: list[float], stopped: bool) -> None:
            completion = finished_completion(self.policy, self.version, tokens, logprobs, stopped=stopped)
            on_turn(left.pop(row), completion)

        def enter(new: Sequence[NextTurn]) -> None:
            limits = [turn.continuation.max_tokens for turn in new]
            rows.add(limits, [turn.continuation.stream for turn in new])
            ids.extend(turn.prompt.token_ids for turn in new)

        rows, ids = Rows(sampling, self.policy, on_row), list[Sequence[int]]()
        enter(list(left.values()))
        decoder = self._decoder()
        at_once = self._at_once(turns.most, turns.longest, 1, sampling.max_tokens)
        for _ in steps(decoder, ids, 1, at_once, rows, longest=turns.longest):
            if new := turns.ready():
                left.update(enumerate(new, len(ids)))
                enter(new)

    def _at_once(self, num_groups: int, longest: int, size: int, max_tokens: int) -> int:
        """Groups that are sampled at the same time. `longest`: tokens of the longest prompt."""
        wanted, free = max(1, self.sample_budget // size), free_bytes(self.policy.device)
        wanted = min(wanted, num_groups)
        if free is None:
            return wanted
        config, dtype = self.policy.model.config.get_text_config(), self.policy.compute_dtype
        needed = group_bytes(config, dtype, group_size=size, prompt_tokens=longest, max_tokens=max_tokens)
        return min(wanted, groups_that_fit(free, needed))

    def rows(self, streams: Sequence[tuple[int, int]], sampling: Sampling, on_row: OnRow) -> Rows:
        """One row for each (place of its prompt, sample)."""
        rows = Rows(sampling, self.policy, on_row)
        limits = [sampling.limit(place) for place, _ in streams]
        rows.add(limits, [sampling.stream(place, sample) for place, sample in streams])
        return rows


def _largest_class(missing: Mapping[int, Sequence[int]]) -> dict[int, Sequence[int]]:
    """The groups that lack the same number of samples and together lack most; at first, all groups."""
    by_number: defaultdict[int, dict[int, Sequence[int]]] = defaultdict(dict)
    for place, samples in missing.items():
        by_number[len(samples)][place] = samples
    return max(by_number.values(), key=lambda each: sum(map(len, each.values())))
