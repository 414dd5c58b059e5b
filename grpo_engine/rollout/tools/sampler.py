"""Tool use as a sampler: the model samples a turn, its calls run, their answers follow, and so on.

It wraps any sampler and is one itself, so trainer and collector do not depend on tools. Token-in, token-out:
each turn continues from exactly the ids that were sampled before it, with the answers' ids between them.

A completion ends after a turn without calls. It is cut (finish reason `length`) at `max_tokens`, which
includes the tools' tokens, at the model's context, or if the model calls in its last turn. Answers are
shortened so that the model has at least one token left; if not even their frame fits, the completion ends
before them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from grpo_engine.config.tools import Tool
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt
from grpo_engine.rollout.sampler.base import (
    AroundSampler,
    GroupAssembly,
    NextTurn,
    OnGroup,
    Sampler,
    Sampling,
)
from grpo_engine.rollout.sampler.turns import TurnQueue
from grpo_engine.rollout.tools.conversation import Conversation
from grpo_engine.rollout.tools.toolbox import OpenToolbox
from grpo_engine.rollout.tools.use import ToolUse


class ToolSampler(AroundSampler):
    """Samples completions of up to `max_turns` turns. Raises ConfigError if a tool cannot work here."""

    def __init__(self, inner: Sampler, policy: Policy, tools: Sequence[Tool], *, max_turns: int) -> None:
        super().__init__(inner)
        self.policy = policy
        self.use = ToolUse(policy, tools)
        self.max_turns = max_turns

    def around(self, inner: Sampler, policy: Policy) -> Self:
        """The same for another policy."""
        return type(self)(inner, policy, self.use.tools, max_turns=self.max_turns)

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        """P prompts → P groups; calls run while other completions are sampled."""
        groups = GroupAssembly(prompts_P, group_size, on_group)
        conversations = [
            Conversation(prompt, place, sample, sampling, self.policy.max_length)
            for place, prompt in enumerate(prompts_P)
            for sample in range(group_size)
        ]
        longest = max((len(each.prompt.token_ids) + each.limit for each in conversations), default=0)
        queue = TurnQueue(most=len(conversations), longest=longest)
        by_stream = {each.stream[:2]: each for each in conversations}
        with self.use.toolbox.open() as toolbox:
            run = _Run(self, toolbox, groups, sampling, by_stream, queue)
            self.inner.generate(prompts_P, group_size, sampling, run.first_turns)
            self.inner.sample_turns(queue, sampling, run.later_turn)
        return groups.groups()


@dataclass(frozen=True, slots=True)
class _Run:
    """The conversations of one `generate`."""

    sampler: ToolSampler
    toolbox: OpenToolbox
    groups: GroupAssembly
    sampling: Sampling
    conversations: Mapping[tuple[int, int], Conversation]
    queue: TurnQueue

    def first_turns(self, place: int, group: Group) -> None:
        for sample, completion in enumerate(group.completions):
            self._take(self.conversations[self.sampling.stream(place, sample)[:2]], completion)

    def later_turn(self, turn: NextTurn, completion: Completion) -> None:
        self._take(self.conversations[turn.continuation.stream[:2]], completion)

    def _take(self, conversation: Conversation, turn: Completion) -> None:
        """Add a turn; start its calls, or end the completion."""
        conversation.add_turn(turn)
        is_cut = turn.finish_reason is FinishReason.LENGTH
        calls = [] if is_cut else self.sampler.use.calls(turn)
        if not calls or conversation.turns >= self.sampler.max_turns:
            self._end(conversation, FinishReason.LENGTH if calls else turn.finish_reason)
            return
        answers = self.sampler.use.start(conversation, calls, self.toolbox, self.sampling)
        self.queue.put_after(partial(self._continue, conversation), answers)

    def _continue(self, conversation: Conversation) -> NextTurn | None:
        """The next turn, after the answers to the calls of the last one; None if there is no room for it."""
        ids = self.sampler.use.answer_tokens(conversation)
        if ids is None:
            self._end(conversation, FinishReason.LENGTH)
            return None
        conversation.add_given(ids)
        return conversation.next_turn()

    def _end(self, conversation: Conversation, reason: FinishReason) -> None:
        self.toolbox.end(conversation.rollout)
        completion = conversation.completion(self.sampler.policy, reason)
        self.groups.add(conversation.place, conversation.sample, completion)
