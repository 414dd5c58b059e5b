"""A completion of several turns while it grows: its exact tokens, tool calls and answers."""

from concurrent.futures import Future
from dataclasses import replace
from uuid import uuid4

from grpo_engine.contract.records import FinishReason, ToolAnswer, ToolTurn
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Prompt
from grpo_engine.rollout.sampler.base import Continuation, NextTurn, Sampling
from grpo_engine.rollout.sampler.turns import Tokens
from grpo_engine.rollout.tools.calls import ToolCall
from grpo_engine.rollout.tools.toolbox import ToolResult

MAX_NAME_CHARACTERS = 64
"""Maximum characters of a tool's name in the record; the model may write any."""


class Conversation(Tokens):
    def __init__(
        self, prompt: Prompt, place: int, sample: int, sampling: Sampling, context: int | None
    ) -> None:
        """`place`: the prompt's position among the prompts; `context`: the model's maximum of tokens."""
        super().__init__()
        self.prompt = prompt
        self.place = place
        self.number, self.sample, _ = sampling.stream(place, sample)
        self.rollout = uuid4().hex
        """Id of the completion for the servers of its tools."""
        room = sampling.max_tokens if context is None else context - len(prompt.token_ids)
        self.limit = min(sampling.max_tokens, room)
        """Maximum tokens of the whole completion."""
        self.turns = 0
        self.calls: list[dict[str, object]] = []
        self.tool_turns: list[ToolTurn] = []
        """The turns whose calls were answered."""
        self.waiting: list[tuple[ToolCall, Future[ToolResult]]] = []
        """Calls of the newest turn, while they run."""

    @property
    def stream(self) -> tuple[int, int, int]:
        """(prompt, sample, turn) of its next turn."""
        return self.number, self.sample, self.turns

    @property
    def room(self) -> int:
        """Remaining tokens."""
        return self.limit - len(self.token_ids)

    def next_turn(self) -> NextTurn:
        tokens = (*self.prompt.token_ids, *self.token_ids)
        continuation = Continuation(*self.stream, max_tokens=self.room)
        return NextTurn(replace(self.prompt, token_ids=tokens), continuation)

    def add_turn(self, turn: Completion) -> None:
        self.last = turn
        self.turns += 1
        self.add_sampled(turn)

    def collect_answers(self) -> list[tuple[ToolCall, ToolResult]]:
        """Wait for the newest turn's calls and record them with their answers."""
        answered = [(call, future.result()) for call, future in self.waiting]
        self.waiting = []
        self.calls += [
            {"name": call.name, "arguments": call.arguments, "answer": answer.text, "error": answer.failed}
            for call, answer in answered
        ]
        answers = tuple(
            ToolAnswer(name=call.name[:MAX_NAME_CHARACTERS], text=answer.text, failed=answer.failed)
            for call, answer in answered
        )
        self.tool_turns.append(ToolTurn(text=self.last.text, answers=answers))
        return answered

    def completion(self, policy: Policy, finish_reason: FinishReason) -> Completion:
        last = replace(self.last, finish_reason=finish_reason)
        if self.turns == 1 and not self.calls:
            return last
        is_answered = len(self.tool_turns) == self.turns
        unanswered = [ToolTurn(text=last.text)] if self.calls and not is_answered else []
        return replace(
            last,
            text=policy.completion_text(self.token_ids),
            token_ids=tuple(self.token_ids),
            logprobs=tuple(self.logprobs),
            sampled=tuple(self.sampled),
            turns=self.turns,
            tool_calls=tuple(self.calls),
            tool_turns=(*self.tool_turns, *unanswered),
            answer=last.text,
        )
