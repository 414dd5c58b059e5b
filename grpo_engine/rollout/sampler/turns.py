"""Turns of conversations as requests to a sampler: each becomes ready while others are still sampled.

A conversation waits for a tool or an environment between its turns. So a slow answer delays only its own
conversation: its next turn joins the running ones as soon as it is ready.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Semaphore
from typing import Any

from grpo_engine.objective.types import Completion, Group
from grpo_engine.rollout.sampler.base import NextTurn, OnTurn, Sampler, Sampling

Take = Callable[[], NextTurn | None]
"""Takes the answers of a conversation; returns its next turn, None if it has ended."""


class Tokens:
    """The exact tokens of a conversation while it grows."""

    def __init__(self, given: Sequence[int] = ()) -> None:
        """`given`: tokens that the model did not write."""
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.sampled: list[bool] = []
        self.add_given(given)

    def add_given(self, ids: Sequence[int]) -> None:
        """Append tokens that the model did not write."""
        self.token_ids += ids
        self.logprobs += [0.0] * len(ids)
        self.sampled += [False] * len(ids)

    def add_sampled(self, turn: Completion) -> None:
        self.token_ids += turn.token_ids
        self.logprobs += turn.logprobs
        self.sampled += [True] * turn.num_tokens


class TurnQueue:
    """Conversations that wait for answers, each until all of its answers are there."""

    def __init__(self, *, most: int, longest: int = 0) -> None:
        """`most`: maximum number of turns at the same time; `longest`: maximum tokens before a turn."""
        self.most, self.longest = most, longest
        self._num_waiting = 0
        self._answered: SimpleQueue[Take] = SimpleQueue()

    def put(self, take: Take) -> None:
        """Call `take` in the sampling thread, in which all of them are called; from any thread."""
        self._answered.put(take)

    def put_after(self, take: Take, answers: Sequence[Future[Any]]) -> None:
        """`put` once all of these answers have arrived; sampling does not end before."""
        self._num_waiting += 1
        left = Semaphore(len(answers) - 1)

        def taken() -> NextTurn | None:
            self._num_waiting -= 1
            return take()

        def on_answer(_: Future[Any]) -> None:
            if not left.acquire(blocking=False):  # it was the last one
                self.put(taken)

        for answer in answers:
            answer.add_done_callback(on_answer)

    def ready(self) -> list[NextTurn]:
        """Turns that became ready since the last call."""
        turns = []
        with suppress(Empty):
            while True:
                turns.append(self._answered.get_nowait()())
        return [turn for turn in turns if turn is not None]

    def wait(self, seconds: float | None = None) -> list[NextTurn] | None:
        """The same, but waits up to `seconds` until one is ready; None if there will be no further turn."""
        while self._num_waiting:
            try:
                first = self._answered.get(timeout=seconds)()
            except Empty:
                return []
            if turns := [*([first] if first else []), *self.ready()]:
                return turns
        return None


def sample_in_rounds(sampler: Sampler, turns: TurnQueue, sampling: Sampling, on_turn: OnTurn) -> None:
    """Sample the turns that are ready, and after them those that became ready meanwhile, by `generate`."""

    def on_group(place: int, group: Group) -> None:
        on_turn(batch[place], group.completions[0])

    while batch := turns.wait() or ():
        continuing = tuple(turn.continuation for turn in batch)
        longest = max(each.max_tokens for each in continuing)
        prompts = [turn.prompt for turn in batch]
        sampler.generate(prompts, 1, replace(sampling, max_tokens=longest, continuing=continuing), on_group)
