"""The loop of the torch sampler: rows that are decoded together, drawn, stopped and replaced."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from grpo_engine.models.fast.operations import draw
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.sampler.decoding import Decoder, SharedDecoder

STOP_MARGIN = 4
"""Tokens searched beyond a stop string's bytes, because special tokens decode to nothing."""
KEEP_BELOW = 0.85
"""Finished rows leave when fewer than this share of the rows still run: leaving copies the cache."""
REFILL_BELOW = 0.75
"""Waiting prompts join when fewer than this share of the places are taken: joining copies the cache too."""
LOOK_EVERY = {"cpu": 1, "cuda": 8}
"""Tokens between two checks for finished rows: on a GPU each check waits for the device."""
OnRow = Callable[[int, list[int], list[float], bool], None]
"""Called when a row is finished: its number, token ids, their log-probabilities, whether a stop token or
string ended it."""


class Rows:
    """What every row of a sampling has drawn; `live` are those in the decoder, in its order."""

    def __init__(
        self, limits: Tensor, draws: Tensor | None, sampling: Sampling, policy: Policy, on_row: OnRow
    ) -> None:
        """`limits`: tokens of each row [R]; `draws`: uniform numbers [R, max_tokens], None for greedy."""
        self.sampling, self.policy, self.on_row = sampling, policy, on_row
        self.draws = None if draws is None else torch.nn.functional.pad(draws, (0, 1))
        device = policy.device
        self.limits = limits.to(device)
        # Finished rows that are still in the decoder write the last column; it is never read.
        shape = len(limits), sampling.max_tokens + 1
        self.tokens = torch.zeros(shape, dtype=torch.long, device=device)
        self.logprobs = torch.zeros(shape, device=device)
        self.lengths = torch.zeros(len(limits), dtype=torch.long, device=device)
        """Length of each finished row that is not reported yet; 0 for all others."""
        self.stopped = torch.zeros(len(limits), dtype=torch.bool, device=device)
        self.clear()
        self.num_running = 0
        self.look_every = 1 if sampling.stop else LOOK_EVERY.get(device.type, 1)

    def clear(self) -> None:
        """No row is in the decoder."""
        self.live = self.lengths[:0]
        self.at = self.lengths[:0]
        """Tokens that each live row has."""
        self.running = self.stopped[:0]

    def enter(self, rows: range) -> None:
        """Start these rows, behind the live ones."""
        new = torch.arange(rows.start, rows.stop, device=self.live.device)
        self.live = torch.cat([self.live, new])
        self.at = torch.cat([self.at, torch.zeros_like(new)])
        self.running = torch.cat([self.running, torch.ones_like(new, dtype=torch.bool)])
        self.num_running += len(rows)

    def draw(self, logits_B: Tensor) -> Tensor:
        """The next token [B] of each live row; those of finished rows are never read."""
        width = self.tokens.shape[1]
        place = self.at.clamp(max=width - 1).add_(self.live, alpha=width)
        uniform = None if self.draws is None else self.draws.take(place)
        token, logprob = choose(logits_B, uniform, self.sampling.temperature)
        self.tokens.view(-1).index_copy_(0, place, token)
        self.logprobs.view(-1).index_copy_(0, place, logprob)
        self.at = self.at + 1
        stopped = (token[:, None] == self.policy.stop_ids).any(1)
        if self.sampling.stop:
            stopped |= self._at_stop_string()
        ends = self.running & (stopped | (self.at == self.limits[self.live]))
        self.lengths[self.live] += self.at * ends
        self.stopped[self.live] |= stopped & ends
        self.running = self.running & ~ends
        return token

    def look(self) -> None:
        """Report the rows that finished since the last call."""
        left = int(self.running.sum())
        if left == self.num_running:
            return
        self.num_running = left
        done = self.live[~self.running & (self.lengths[self.live] > 0)]
        lengths, stopped = self.lengths[done].tolist(), self.stopped[done].tolist()
        tokens, logprobs = self.tokens[done].tolist(), self.logprobs[done].tolist()
        self.lengths[done] = 0
        for row, length, own, values, at_stop in zip(
            done.tolist(), lengths, tokens, logprobs, stopped, strict=True
        ):
            self.on_row(row, own[:length], values[:length], at_stop)

    def leave(self) -> Tensor | None:
        """Places in the decoder of the running rows, if it is time for the finished ones to leave."""
        # A row at its own limit leaves at once: the model may have no further position for it.
        must = bool(self.sampling.continuing) and self.num_running < len(self.live)
        if not (must or self.num_running < KEEP_BELOW * len(self.live)):
            return None
        kept = self.running.nonzero().squeeze(1)
        self.live, self.at, self.running = self.live[kept], self.at[kept], self.running[kept]
        return kept

    def _at_stop_string(self) -> Tensor:
        """Whether the end of each row's text contains a stop string."""
        reach = max(len(text.encode()) for text in self.sampling.stop) + STOP_MARGIN
        found = []
        for row, length in zip(self.live.tolist(), self.at.tolist(), strict=True):
            text = self.policy.decode(self.tokens[row, max(0, length - reach) : length].tolist())
            found.append(any(stop in text for stop in self.sampling.stop))
        return torch.tensor(found, device=self.live.device)


def steps(
    decoder: Decoder, prompts: Sequence[Sequence[int]], group_size: int, at_once: int, rows: Rows
) -> Iterator[None]:
    """Decode all groups, at most `at_once` at a time; pauses after each check for finished rows."""
    # Other decoders have no position for a finished row that stays.
    look_every = rows.look_every if isinstance(decoder, SharedDecoder) else 1
    started = 0

    def enter(count: int) -> Sequence[Sequence[int]]:
        nonlocal started
        chunk = prompts[started : started + count]
        rows.enter(range(started * group_size, (started + len(chunk)) * group_size))
        started += len(chunk)
        return chunk

    while started < len(prompts):
        rows.clear()
        logits = decoder.start(enter(at_once), group_size)
        turn = 0
        while True:
            token = rows.draw(logits)
            turn += 1
            if turn % look_every == 0:
                rows.look()
                yield
                if rows.num_running == 0:
                    break
                if (kept := rows.leave()) is not None:
                    decoder.keep(kept)
                    token = token[kept]
            logits = decoder.step(token)
            if isinstance(decoder, SharedDecoder) and started < len(prompts):
                free = at_once - -(-len(rows.live) // group_size)
                if free > (1 - REFILL_BELOW) * at_once:
                    logits = torch.cat([logits, decoder.join(enter(free), group_size)])


def choose(logits_B: Tensor, uniforms_B: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    """Next token [B] and its log-probability [B] from logits [B, V].

    Drawn by inverse CDF. Without uniform numbers, the most likely token with its log-probability at
    temperature 1.
    """
    if uniforms_B is None:
        best, token = logits_B.float().log_softmax(-1).max(-1)
        return token, best
    return draw(logits_B, uniforms_B, temperature)
