"""What a tool-using sampler remembers while completions grow: talks, and the groups they make.

Boundary: no sampling and no tools; tokens are kept exactly as they came.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace

from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt
from grpo_engine.rollout.sampler.base import OnGroup
from grpo_engine.rollout.tools.calls import ToolCall
from grpo_engine.rollout.tools.toolbox import ToolResult


class Talk:
    """One completion while it grows turn by turn."""

    def __init__(self, prompt: Prompt, stream: tuple[int, int, int], limit: int) -> None:
        self.prompt = prompt
        self.number, self.sample, _ = stream
        self.limit = limit
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.sampled: list[bool] = []
        self.turns = 0
        self.calls: list[dict[str, object]] = []
        self.waiting: list[tuple[ToolCall, Future[ToolResult]]] = []
        self.completion: Completion | None = None

    @property
    def name(self) -> tuple[int, int, int]:
        """(prompt, sample, turn) of its next turn, as `Sampling.stream` has it."""
        return self.number, self.sample, self.turns

    @property
    def room(self) -> int:
        """Tokens that are left."""
        return self.limit - len(self.token_ids)

    def hear(self, completion: Completion) -> None:
        self.last = completion
        self.turns += 1
        self.token_ids += completion.token_ids
        self.logprobs += completion.logprobs
        self.sampled += [True] * len(completion.token_ids)

    def collect(self) -> list[tuple[ToolCall, ToolResult]]:
        """Waits for the newest calls' answers and notes them."""
        answered = [(call, future.result()) for call, future in self.waiting]
        self.waiting = []
        self.calls += [
            {"name": call.name, "arguments": call.arguments, "answer": answer.text, "error": answer.failed}
            for call, answer in answered
        ]
        return answered

    def append(self, ids: Sequence[int]) -> None:
        """What tools wrote: tokens that the model did not sample."""
        self.token_ids += ids
        self.logprobs += [0.0] * len(ids)
        self.sampled += [False] * len(ids)

    def end(self, policy: Policy, finish_reason: FinishReason) -> None:
        last = self.last
        if self.turns == 1 and not self.calls:
            self.completion = replace(last, finish_reason=finish_reason)
            return
        at_end = self.token_ids and self.token_ids[-1] in policy.stop_set
        self.completion = replace(
            last,
            text=policy.decode(self.token_ids[:-1] if at_end else self.token_ids),
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            finish_reason=finish_reason,
            sampled=tuple(self.sampled),
            turns=self.turns,
            tool_calls=tuple(self.calls),
            answer=last.text,
        )


class Groups:
    """The groups of a call, told as soon as their last completion has ended."""

    def __init__(
        self, prompts_P: Sequence[Prompt], talks: Sequence[Talk], group_size: int, on_group: OnGroup | None
    ) -> None:
        self.prompts_P = prompts_P
        self.talks = talks
        self.group_size = group_size
        self.on_group = on_group
        self._places = {id(talk): index // group_size for index, talk in enumerate(talks)}
        self._made: dict[int, Group] = {}

    def talks_of(self, place: int) -> Sequence[Talk]:
        return self.talks[place * self.group_size : (place + 1) * self.group_size]

    def tell_of(self, talk: Talk) -> None:
        self.tell(self._places[id(talk)])

    def tell(self, place: int) -> None:
        """Hands the group over if it is complete."""
        ended = tuple(talk.completion for talk in self.talks_of(place) if talk.completion is not None)
        if len(ended) < self.group_size:
            return
        self._made[place] = Group(self.prompts_P[place], ended)
        if self.on_group is not None:
            self.on_group(place, self._made[place])

    def all(self) -> list[Group]:
        return [self._made[place] for place in range(len(self.prompts_P))]
