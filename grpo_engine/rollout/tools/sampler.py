"""Tool use as a sampler: the model samples a turn, its calls run, their answers follow, and so on.

It wraps any sampler and is one itself, so trainer and collector do not depend on tools. Token-in, token-out:
each turn continues from exactly the ids that were sampled before it, with the answers' ids between them.

A completion ends after a turn without calls. It is cut (finish reason `length`) at `max_tokens`, which
includes the tools' tokens, at the model's context, or if the model calls in its last turn. Answers are
shortened so that the model has at least one token left; if not even their frame fits, the completion ends
before them.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from grpo_engine.config.tools import HttpTool, PythonTool, function_schemas
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt
from grpo_engine.rollout.sampler.base import (
    AroundSampler,
    Continuation,
    GroupAssembly,
    OnGroup,
    Sampler,
    Sampling,
)
from grpo_engine.rollout.tools.calls import CallReader, ToolCall
from grpo_engine.rollout.tools.conversation import Conversation
from grpo_engine.rollout.tools.rendering import AnswerRenderer, tool_format
from grpo_engine.rollout.tools.toolbox import OpenToolbox, Toolbox

UNKNOWN_TOOL = "unknown"
"""Name of an unknown tool for templates, because text that the model wrote is never rendered."""


class ToolSampler(AroundSampler):
    """Samples completions of up to `max_turns` turns. Raises ConfigError if a tool cannot work here."""

    def __init__(
        self, inner: Sampler, policy: Policy, tools: Sequence[PythonTool | HttpTool], *, max_turns: int
    ) -> None:
        super().__init__(inner)
        self.policy = policy
        self.toolbox = Toolbox(tools)
        known = tool_format(policy.tokenizer)
        self.reader = CallReader(known, function_schemas(tools))
        self.renderer = AnswerRenderer(policy.tokenizer, policy.stop_set, known)
        self.max_turns = max_turns

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        """P prompts → P groups; calls run while other completions are still sampled."""
        conversations = [
            Conversation(prompt, place, sampling.stream(place, sample), self._limit(prompt, sampling))
            for place, prompt in enumerate(prompts_P)
            for sample in range(group_size)
        ]
        groups = GroupAssembly(prompts_P, group_size, on_group)
        with self.toolbox.open() as toolbox:

            def first_turn(place: int, group: Group) -> None:
                own = conversations[place * group_size : (place + 1) * group_size]
                for conversation, completion in zip(own, group.completions, strict=True):
                    self._take_turn(conversation, completion, groups, toolbox, sampling)

            self.inner.generate(prompts_P, group_size, sampling, first_turn)
            waiting = conversations
            while waiting := [each for each in waiting if each.waiting and self._answered(each, groups)]:
                self._next_turn(waiting, groups, toolbox, sampling)
        return groups.groups()

    def _limit(self, prompt: Prompt, sampling: Sampling) -> int:
        context = self.policy.max_length
        room = sampling.max_tokens if context is None else context - len(prompt.token_ids)
        return min(sampling.max_tokens, room)

    def _take_turn(
        self,
        conversation: Conversation,
        turn: Completion,
        groups: GroupAssembly,
        toolbox: OpenToolbox,
        sampling: Sampling,
    ) -> None:
        """Add a turn; start its calls, or end the completion."""
        conversation.add_turn(turn)
        is_cut = turn.finish_reason is FinishReason.LENGTH
        calls = [] if is_cut else self._calls(turn)
        if not calls or conversation.turns >= self.max_turns:
            self._end(conversation, groups, FinishReason.LENGTH if calls else turn.finish_reason)
            return
        key, item = f"{sampling.seed}/{sampling.step}/{conversation.stream}", conversation.prompt.item
        conversation.waiting = [
            (call, toolbox.submit(call, item, f"{key}/{number}")) for number, call in enumerate(calls)
        ]

    def _calls(self, turn: Completion) -> list[ToolCall]:
        """Calls of a turn. Its text keeps special tokens, which may mark calls, and all spaces."""
        ids = list(turn.token_ids)
        if ids and ids[-1] in self.policy.stop_set:
            ids.pop()
        text = self.policy.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
        return self.reader.read(cast(str, text))

    def _end(self, conversation: Conversation, groups: GroupAssembly, reason: FinishReason) -> None:
        completion = conversation.completion(self.policy, reason)
        groups.add(conversation.place, conversation.sample, completion)

    def _answered(self, conversation: Conversation, groups: GroupAssembly) -> bool:
        """Append the answers to the newest turn's calls; False if the completion ends without room for
        them."""
        answered = conversation.collect_answers()
        ids = self.renderer.render(
            [call.name if call.name in self.toolbox.tools else UNKNOWN_TOOL for call, _ in answered],
            [answer.text for _, answer in answered],
            last_token=conversation.token_ids[-1] if conversation.token_ids else None,
            room=conversation.room - 1,
        )
        if ids is None:
            self._end(conversation, groups, FinishReason.LENGTH)
            return False
        conversation.add_answers(ids)
        return True

    def _next_turn(
        self,
        conversations: Sequence[Conversation],
        groups: GroupAssembly,
        toolbox: OpenToolbox,
        sampling: Sampling,
    ) -> None:
        """Sample the next turn of all conversations, as separate prompts in one call of the inner sampler."""

        def on_turn(place: int, group: Group) -> None:
            self._take_turn(conversations[place], group.completions[0], groups, toolbox, sampling)

        continuing = tuple(Continuation(*each.stream, max_tokens=each.room) for each in conversations)
        longest = max(each.max_tokens for each in continuing)
        prompts = [
            replace(each.prompt, token_ids=(*each.prompt.token_ids, *each.token_ids))
            for each in conversations
        ]
        self.inner.generate(prompts, 1, replace(sampling, max_tokens=longest, continuing=continuing), on_turn)
