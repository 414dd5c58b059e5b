"""The loop of the torch sampler: rows that are decoded together, drawn, stopped and replaced."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from grpo_engine.models.fast.operations import draw
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.sampler.base import Sampling, uniforms
from grpo_engine.rollout.sampler.cache_size import PROMPT_PLACES
from grpo_engine.rollout.sampler.decoding import Decoder, SharedDecoder
from grpo_engine.rollout.sampler.fixed_cache import BufferSizes

STOP_MARGIN = 4
"""Extra tokens in which to search for a stop string, because special tokens decode to nothing."""
KEEP_BELOW = {"cpu": 0.85, "cuda": 0.5}
"""Finished rows leave when at most this share of the rows still runs, because leaving copies the cache. On a
GPU it gains nothing until half of the rows are enough (`fixed_cache.py`)."""
REFILL_BELOW = 0.75
"""Waiting prompts join when less than this share of the places is taken, because joining copies the cache."""
LOOK_EVERY = {"cpu": 1, "cuda": 8}
"""Tokens between two checks for finished rows. On a GPU each check waits for the device."""
LARGEST_UNIFORM = 1 - 2**-22
"""Far enough below 1 that u · Σp stays below Σp in float32."""
OnRow = Callable[[int, list[int], list[float], bool], None]
"""Called when a row is finished, with its number, its token ids, their log-probabilities, and whether a stop
token or string ended it."""


class Rows:
    """The tokens that every row of a sampling has drawn; `live` are the rows in the decoder, in its order.

    The device only draws. Every few tokens, `look` copies them to the host, which finds the finished rows. So
    the host waits for the device once every few tokens, not several times for each.
    """

    def __init__(self, sampling: Sampling, policy: Policy, on_row: OnRow) -> None:
        self.sampling, self.policy, self.on_row = sampling, policy, on_row
        self.kind = policy.device.type
        self.look_every = LOOK_EVERY.get(self.kind, 1)
        self.stop_ids = np.array(sorted(policy.stop_set))
        self.limits = np.zeros(0, dtype=np.int64)
        """Maximum tokens of each row [R]."""
        self.draws = torch.zeros(0, sampling.max_tokens, device=policy.device)
        """Uniform numbers [R, max_tokens]; not used if sampling is greedy."""
        # A row may reach its limit, or stop, between two looks.
        self.tokens = np.zeros((0, sampling.max_tokens + self.look_every), dtype=np.int64)
        self.logprobs = np.zeros(self.tokens.shape, dtype=np.float32)
        self.clear()

    def add(self, limits: Sequence[int], streams: Sequence[tuple[int, int, int]]) -> None:
        """Add rows that have not started. `limits`: maximum tokens; `streams`: (prompt, sample, turn)."""
        new = np.zeros((len(limits), self.tokens.shape[1]))
        self.limits = np.concatenate([self.limits, np.array(limits, dtype=np.int64)])
        self.tokens = np.concatenate([self.tokens, new.astype(np.int64)])
        self.logprobs = np.concatenate([self.logprobs, new.astype(np.float32)])
        if not self.sampling.is_greedy:
            self.draws = torch.cat([self.draws, self._numbers(streams)])

    def _numbers(self, streams: Sequence[tuple[int, int, int]]) -> Tensor:
        """Uniform numbers [rows, max_tokens]."""
        seed, step, count = self.sampling.seed, self.sampling.step, self.sampling.max_tokens
        rows = [uniforms(seed, step, prompt, sample, count, turn=turn) for prompt, sample, turn in streams]
        return torch.from_numpy(np.stack(rows)).to(self.policy.device).clamp_(max=LARGEST_UNIFORM)

    def clear(self) -> None:
        """Remove all rows from the decoder."""
        self.live = np.zeros(0, dtype=np.int64)
        self.at = np.zeros(0, dtype=np.int64)
        """Tokens that each live row has."""
        self.running = np.zeros(0, dtype=bool)
        self.places = torch.zeros(0, dtype=torch.long, device=self.policy.device)
        """Each live row's next uniform number in `draws`, on the device."""
        self.drawn: list[tuple[Tensor, Tensor]] = []
        """Tokens [B] and their log-probabilities since the last look, on the device."""

    @property
    def num_running(self) -> int:
        return int(self.running.sum())

    def enter(self, rows: range) -> None:
        """Start these rows after the live ones. Must follow a look."""
        self.live = np.concatenate([self.live, np.array(rows)])
        self.at = np.concatenate([self.at, np.zeros(len(rows), dtype=np.int64)])
        self.running = np.concatenate([self.running, np.ones(len(rows), dtype=bool)])
        width = self.sampling.max_tokens
        first = torch.arange(rows.start * width, rows.stop * width, width, device=self.places.device)
        self.places = torch.cat([self.places, first])

    def draw(self, logits_B: Tensor) -> Tensor:
        """The next token [B] of each live row; those of finished rows are never read."""
        uniform = None if self.sampling.is_greedy else self.draws.take(self.places)
        drawn = choose(logits_B, uniform, self.sampling.temperature)
        self.drawn.append(drawn)
        if uniform is not None:
            self.places = (self.places + 1).clamp_(max=self.draws.numel() - 1)
        return drawn[0]

    def look(self) -> None:
        """Report the rows that finished since the last call."""
        new_BL, logprobs_BL = self._on_host()
        length = new_BL.shape[1]
        rows, at = self.live[self.running], self.at[self.running]
        columns = at[:, None] + np.arange(length)
        self.tokens[rows[:, None], columns] = new_BL[self.running]
        self.logprobs[rows[:, None], columns] = logprobs_BL[self.running]
        stops = (new_BL[self.running, :, None] == self.stop_ids).any(2)
        if self.sampling.stop:
            stops |= self._at_stop_string(rows, columns)
        ends = stops | (columns + 1 == self.limits[rows][:, None])
        first, is_done = ends.argmax(1), ends.any(1)
        self.at[self.running] = at + np.where(is_done, first + 1, length)
        self.running[self.running] = ~is_done
        for number in is_done.nonzero()[0].tolist():
            row, end = int(rows[number]), int(at[number] + first[number] + 1)
            own, values = self.tokens[row, :end].tolist(), self.logprobs[row, :end].tolist()
            self.on_row(row, own, values, bool(stops[number, first[number]]))

    def leave(self, *, at_once: bool) -> Tensor | None:
        """Places of the running rows in the decoder if the finished ones should leave now; otherwise None.

        `at_once`: rows leave as soon as one is finished.
        """
        running, num_live = self.num_running, len(self.live)
        if running == num_live or not (at_once or running <= KEEP_BELOW[self.kind] * num_live):
            return None
        kept = self.running.nonzero()[0]
        self.live, self.at, self.running = self.live[kept], self.at[kept], self.running[kept]
        places = torch.from_numpy(kept)
        self.places = self.places.index_select(0, places.to(self.places.device, non_blocking=True))
        return places

    def _on_host(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens and log-probabilities [B, L] drawn since the last call, by one copy from the device."""
        tokens, logprobs = (torch.stack(each, 1) for each in zip(*self.drawn, strict=True))
        self.drawn = []
        both = torch.stack([tokens.int(), logprobs.view(torch.int32)]).cpu().numpy()
        return both[0], both[1].view(np.float32)

    def _at_stop_string(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """[n, L] whether the end of the row's text contains a stop string after each new token."""
        reach = max(len(text.encode()) for text in self.sampling.stop) + STOP_MARGIN
        found = np.zeros(columns.shape, dtype=bool)
        for number, (row, new) in enumerate(zip(rows.tolist(), columns.tolist(), strict=True)):
            for place, column in enumerate(new):
                text = self.policy.decode(self.tokens[row, max(0, column + 1 - reach) : column + 1].tolist())
                found[number, place] = any(stop in text for stop in self.sampling.stop)
        return found


def steps(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    group_size: int,
    at_once: int,
    rows: Rows,
    *,
    longest: int | None = None,
) -> Iterator[None]:
    """Decode all groups, at most `at_once` at a time; pauses after each check for finished rows.

    `longest`: maximum tokens of a prompt, if the caller appends prompts during the pauses.
    """
    # Other decoders have no position for a finished row, so they check after every token.
    shared = decoder if isinstance(decoder, SharedDecoder) else None
    look_every = rows.look_every if shared else 1
    has_turns = longest is not None or bool(rows.sampling.continuing)
    if longest is None:
        at_once, longest = min(at_once, len(prompts)), max(map(len, prompts))
        most_prompts = min(PROMPT_PLACES * at_once, len(prompts))
    else:
        most_prompts = PROMPT_PLACES * at_once
    if shared:
        tokens = rows.sampling.max_tokens
        shared.reserve(BufferSizes(at_once * group_size, group_size, most_prompts, longest, tokens))
    started = 0

    def enter(count: int) -> Sequence[Sequence[int]]:
        nonlocal started
        chunk = prompts[started : started + count]
        rows.enter(range(started * group_size, (started + len(chunk)) * group_size))
        started += len(chunk)
        return chunk

    def free() -> int:
        """Groups that can join."""
        taken = len(set((rows.live // group_size).tolist()))
        return min(at_once - -(-len(rows.live) // group_size), most_prompts - taken)

    while started < len(prompts):
        rows.clear()
        logits = decoder.start(enter(at_once), group_size)
        while True:
            token = rows.draw(logits)
            has_looked = len(rows.drawn) == look_every
            if has_looked:
                rows.look()
                yield
                if rows.num_running == 0:
                    break
                if (kept := rows.leave(at_once=shared is None and has_turns)) is not None:
                    decoder.keep(kept)
                    token = token.index_select(0, kept.to(token.device, non_blocking=True))
            logits = decoder.step(token)
            if shared and has_looked and started < len(prompts) and free() > (1 - REFILL_BELOW) * at_once:
                logits = torch.cat([logits, shared.join(enter(free()), group_size)])


def choose(logits_B: Tensor, uniforms_B: Tensor | None, temperature: float) -> tuple[Tensor, Tensor]:
    """Next token [B] and its log-probability [B] from logits [B, V].

    Drawn by inverse CDF. Without uniform numbers, the most likely token with its log-probability at
    temperature 1.
    """
    if uniforms_B is None:
        best, token = logits_B.float().log_softmax(-1).max(-1)
        return token, best
    return draw(logits_B, uniforms_B, temperature)
