"""Sampling with the training model itself: any device, no further dependency.

Each prompt is computed once for its group, finished rows leave the batch, and the drawn token does not
depend on which rows are computed together (`base.uniforms`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from grpo_engine.errors import DeviceMemoryError
from grpo_engine.policy import PROOF_TOLERANCE, Policy
from grpo_engine.records import FinishReason
from grpo_engine.sampler.base import OnGroup, Sampling, uniforms
from grpo_engine.sampler.decoding import choose_decoder
from grpo_engine.types import Completion, Group, Prompt

LARGEST_UNIFORM = 1 - 2**-22
"""Below 1 by enough that u · Σp stays below Σp in float32."""
STOP_MARGIN = 4
"""Tokens that are looked back beyond a stop string's bytes: special tokens decode to nothing."""
Ended = Callable[[int, list[int], list[float], bool], None]
"""Row, its token ids, their log-probabilities, whether it ended by itself."""
KEEP_BELOW = 0.85
"""Finished rows leave when fewer than this share of the rows still run: leaving copies the cache."""


class TorchSampler:
    shares_weights = True

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

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        """P prompts → P groups; as many prompts at a time as the sample budget (and the memory) allows.

        Raises DeviceMemoryError where not even one group fits.
        """
        groups: list[Group] = []
        with torch.no_grad(), self.policy.sampling():
            while len(groups) < len(prompts_P):
                start, at_once = len(groups), max(1, self.sample_budget // group_size)
                chunk = prompts_P[start : start + at_once]
                try:
                    groups += self._generate_chunk(chunk, start, group_size, sampling, on_group)
                except torch.OutOfMemoryError as error:
                    if len(chunk) == 1:
                        raise DeviceMemoryError("one group does not fit the device's memory") from error
                    torch.cuda.empty_cache()
                    self.sample_budget = group_size * (len(chunk) // 2)
        return groups

    def _generate_chunk(
        self,
        prompts: Sequence[Prompt],
        first: int,
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None,
    ) -> list[Group]:
        made: dict[int, Completion] = {}
        groups: dict[int, Group] = {}

        def ended(row: int, tokens: list[int], logprobs: list[float], stopped: bool) -> None:
            made[row] = self._completion(tokens, logprobs, stopped)
            place = row // group_size
            members = range(place * group_size, (place + 1) * group_size)
            if all(member in made for member in members):
                groups[place] = Group(prompts[place], tuple(made[member] for member in members))
                if on_group is not None:
                    on_group(first + place, groups[place])

        places = range(first, first + len(prompts))
        draws = self._draws(places, group_size, sampling)
        limits = torch.tensor([sampling.limit(place) for place in places for _ in range(group_size)])
        ids = [prompt.token_ids for prompt in prompts]
        self._decode(ids, group_size, sampling, draws, limits.to(self.policy.device), ended)
        return [groups[place] for place in range(len(prompts))]

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

    def _decode(
        self,
        prompts: Sequence[Sequence[int]],
        group_size: int,
        sampling: Sampling,
        draws: Tensor | None,
        limits: Tensor,
        ended: Ended,
    ) -> None:
        """Token by token until every row has ended, at its limit at the latest; `ended` is told of each."""
        decoder = self._decoder()
        logits = decoder.start(prompts, group_size)
        count, device = len(logits), logits.device
        tokens = torch.zeros(count, sampling.max_tokens, dtype=torch.long, device=device)
        logprobs = torch.zeros(count, sampling.max_tokens, device=device)
        live = torch.arange(count, device=device)
        running = torch.ones(count, dtype=torch.bool, device=device)
        alive = count
        for position in range(sampling.max_tokens):
            uniform = None if draws is None else draws[live, position]
            token, logprob = choose(logits, uniform, sampling.temperature)
            tokens[live, position], logprobs[live, position] = token, logprob
            stopped = torch.isin(token, self.policy.stop_ids)
            if sampling.stop:
                stopped |= self._at_stop_string(tokens[live], position + 1, sampling.stop)
            cut = limits[live] == position + 1
            done = running & (stopped | cut)
            running = running & ~done
            left = int(running.sum())
            if left < alive:
                _tell(ended, live[done], tokens, logprobs, position + 1, stopped[done])
            alive = left
            if left == 0:
                return
            # A row at its own limit leaves at once: the model may have no further position for it.
            if left < KEEP_BELOW * len(live) or (sampling.continuing and bool(cut.any())):
                rows = running.nonzero().squeeze(1)
                decoder.keep(rows)
                live, token, running = live[rows], token[rows], running[rows]
            logits = decoder.step(token)

    def _at_stop_string(self, tokens: Tensor, length: int, stop: tuple[str, ...]) -> Tensor:
        """Whether each row's text holds a stop string, looking back far enough for the longest."""
        reach = max(len(text.encode()) for text in stop) + STOP_MARGIN
        ends = tokens[:, max(0, length - reach) : length].tolist()
        found = [any(text in self.policy.decode(row) for text in stop) for row in ends]
        return torch.tensor(found, device=tokens.device)

    def _completion(self, tokens: list[int], logprobs: list[float], stopped: bool) -> Completion:
        at_end = bool(tokens) and tokens[-1] in self.policy.stop_set
        return Completion(
            text=self.policy.decode(tokens[:-1] if at_end else tokens),
            token_ids=tuple(tokens),
            logprobs=tuple(logprobs),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            policy_version=self.version,
        )


def _tell(ended: Ended, rows: Tensor, tokens: Tensor, logprobs: Tensor, length: int, stopped: Tensor) -> None:
    """Hand the rows that ended at `length` tokens over."""
    parts = rows.tolist(), tokens[rows, :length].tolist(), logprobs[rows, :length].tolist(), stopped.tolist()
    for row, ids, values, at_stop in zip(*parts, strict=True):
        ended(row, ids, values, at_stop)


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
