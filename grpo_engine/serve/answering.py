"""One loaded model and its answer to one request: prompt → tokens → pieces of text."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

import torch

from grpo_engine.chat.protocol import Answer, Generate, Piece, Refused, Token, Usage
from grpo_engine.config.job import SupervisedHyperparameters
from grpo_engine.contract.errors import ConfigError, DatasetError
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.tools.answered import text_and_calls
from grpo_engine.rollout.tools.calls import CallReader
from grpo_engine.rollout.tools.rendering import tool_format
from grpo_engine.run.build import prepare_device, refuse_unknown_tokens
from grpo_engine.serve.protocol import ServedModel
from grpo_engine.serve.streaming import Growth, StreamingSampler
from grpo_engine.serve.text_stream import TextStream

DEFAULT_MAX_TOKENS = 1024
"""Maximum tokens of a completion if the request sets no limit and the context has room for them."""


@dataclass(frozen=True)
class Answering:
    policy: Policy
    sampler: StreamingSampler
    context_tokens: int | None
    """Maximum tokens of prompt and completion together."""

    @classmethod
    def load(cls, served: ServedModel) -> Self:
        """Raises EngineError."""
        device, dtype = prepare_device(served.runtime)
        # In float32 an adapter is merged at load; in lower precision the merge would lose accuracy.
        is_merged = dtype == torch.float32 and served.quantization is None
        given = {"lora": "full"} if is_merged else {"quantization": served.quantization}
        policy = load_policy(served.model, SupervisedHyperparameters.model_validate(given), device, dtype, 0)
        policy.model.requires_grad_(False)
        limits = [limit for limit in (policy.max_length, served.context_tokens) if limit is not None]
        return cls(policy, StreamingSampler(policy), min(limits, default=None))

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Answers are made inside this block."""
        with torch.no_grad(), self.policy.sampling():
            yield

    def answer(self, command: Generate) -> Iterator[Answer]:
        """The answer piece by piece, the last one with its usage. Raises Refused."""
        try:
            yield from self._answer(command)
        except torch.OutOfMemoryError as error:
            message = "The request does not fit the device's memory. Shorten it or lower max_tokens."
            raise Refused("out_of_memory", message) from error

    def _answer(self, command: Generate) -> Iterator[Answer]:
        token_ids = self._prompt(command)
        sampling = Sampling(
            max_tokens=self._max_tokens(command, len(token_ids)),
            temperature=command.temperature,
            seed=command.seed,
            stop=command.stop,
        )
        kind = CallingCompletion if command.tools else _Completion
        completions = [kind(self.policy, command) for _ in range(command.n)]
        for growths in self.sampler.grow(token_ids, command.n, sampling):
            pieces = [piece for growth in growths if (piece := completions[growth.index].grow(growth))]
            if all(completion.is_finished for completion in completions):
                break
            yield Answer(pieces=tuple(pieces))
        num_tokens = sum(completion.num_tokens for completion in completions)
        usage = Usage(prompt_tokens=len(token_ids), completion_tokens=num_tokens)
        yield Answer(pieces=tuple(pieces), usage=usage)

    def _prompt(self, command: Generate) -> tuple[int, ...]:
        conversation = {"messages": list(command.messages or ()), "tools": list(command.tools)}
        row = {"prompt": command.prompt} if command.messages is None else conversation
        param = "prompt" if command.messages is None else "messages"
        reader = RowReader(self.policy.tokenizer, datetime.now(UTC).timestamp())
        try:
            (prompt,) = reader.prompts([row])
            refuse_unknown_tokens([prompt], self.policy)
        except DatasetError as error:
            raise Refused("invalid_messages", error.message.removeprefix("row 1: "), param) from error
        if not prompt.token_ids:
            raise Refused("empty_prompt", f"{param} is empty", param)
        return prompt.token_ids

    def _max_tokens(self, command: Generate, num_prompt: int) -> int:
        """Limit of each completion, in tokens. Raises Refused if the context has no room for it."""
        wanted = command.max_tokens or 1
        if self.context_tokens is None:
            return command.max_tokens or DEFAULT_MAX_TOKENS
        room = self.context_tokens - num_prompt
        if wanted > room:
            raise Refused(
                "context_length_exceeded",
                f"The model's context is {self.context_tokens} tokens: a prompt of {num_prompt} leaves no "
                f"room for {wanted} more. Shorten the prompt or lower max_tokens.",
                "prompt" if command.messages is None else "messages",
            )
        return command.max_tokens or min(room, DEFAULT_MAX_TOKENS)


class _Completion:
    """One of a request's completions, with its text so far."""

    def __init__(self, policy: Policy, command: Generate) -> None:
        self._policy = policy
        self._text = TextStream(policy.decode, command.stop)
        self._shows_tokens = command.logprobs
        self.num_tokens = 0
        self.is_finished = False

    def grow(self, growth: Growth) -> Piece | None:
        """The new text, None if there is none yet. Ignores everything after a stop string."""
        if self.is_finished:
            return None
        self.num_tokens += len(growth.token_ids)
        # A decoder may not treat every stop token as a special one.
        text = self._text.add([token for token in growth.token_ids if token not in self._policy.stop_set])
        reason = growth.finish_reason
        if reason is not None:
            text += self._text.end()
        if self._text.is_stopped:
            reason = FinishReason.STOP
        self.is_finished = reason is not None
        tokens = self._tokens(growth) if self._shows_tokens else ()
        if not (text or tokens or reason):
            return None
        return Piece(index=growth.index, text=text, tokens=tokens, finish_reason=reason)

    def _tokens(self, growth: Growth) -> tuple[Token, ...]:
        pairs = zip(growth.token_ids, growth.logprobs, strict=True)
        return tuple(Token(text=self._policy.decode([token]), logprob=value) for token, value in pairs)


class CallingCompletion(_Completion):
    """A completion that may call tools. It is sent as a whole, because calls can only be read at its end."""

    def __init__(self, policy: Policy, command: Generate) -> None:
        super().__init__(policy, command)
        self._reader = _call_reader(policy, command)
        self._token_ids: list[int] = []
        self._pieces: list[Piece] = []

    def grow(self, growth: Growth) -> Piece | None:
        """The whole completion, None until it is finished."""
        if not self.is_finished:
            self._token_ids += growth.token_ids
        piece = super().grow(growth)
        if piece is not None:
            self._pieces.append(piece)
        if piece is None or piece.finish_reason is None:
            return None
        text, calls = text_and_calls(self._policy, self._reader, self._token_ids)
        whole = "".join(each.text for each in self._pieces)
        tokens = tuple(token for each in self._pieces for token in each.tokens)
        return piece.model_copy(update={"text": text if calls else whole, "calls": calls, "tokens": tokens})


def _call_reader(policy: Policy, command: Generate) -> CallReader:
    """Raises Refused if the model's calls cannot be read."""
    try:
        return CallReader(tool_format(policy.tokenizer), command.tools)
    except ConfigError as error:
        raise Refused("invalid_value", error.message, "tools") from error
