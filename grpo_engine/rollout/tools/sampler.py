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

from grpo_engine.config.tools import Tool, function_schemas
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt
from grpo_engine.rollout.sampler.base import (
    AroundSampler,
    Continuation,
    GroupAssembly,
    NextTurn,
    OnGroup,
    Sampler,
    Sampling,
)
from grpo_engine.rollout.sampler.turns import TurnQueue
from grpo_engine.rollout.tools.calls import CallReader, ToolCall
from grpo_engine.rollout.tools.conversation import Conversation
from grpo_engine.rollout.tools.rendering import UNKNOWN_TOOL, AnswerRenderer, tool_format
from grpo_engine.rollout.tools.toolbox import OpenToolbox, Toolbox


class ToolSampler(AroundSampler):
    """Samples completions of up to `max_turns` turns. Raises ConfigError if a tool cannot work here."""

    def __init__(self, inner: Sampler, policy: Policy, tools: Sequence[Tool], *, max_turns: int) -> None:
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
        """P prompts → P groups; calls run while other completions are sampled."""
        groups = GroupAssembly(prompts_P, group_size, on_group)
        conversations = [
            Conversation(prompt, place, sampling.stream(place, sample), self._limit(prompt, sampling))
            for place, prompt in enumerate(prompts_P)
            for sample in range(group_size)
        ]
        with self.toolbox.open() as toolbox:
            run = _Run(self, toolbox, groups, sampling, conversations)
            self.inner.generate(prompts_P, group_size, sampling, run.first_turns)
            self.inner.sample_turns(run.queue, sampling, run.later_turn)
        return groups.groups()

    def _limit(self, prompt: Prompt, sampling: Sampling) -> int:
        context = self.policy.max_length
        room = sampling.max_tokens if context is None else context - len(prompt.token_ids)
        return min(sampling.max_tokens, room)

    def calls(self, turn: Completion) -> list[ToolCall]:
        """Calls of a turn."""
        return self.reader.read(self.policy.turn_text(turn.token_ids))

    def answer_tokens(self, conversation: Conversation) -> tuple[int, ...] | None:
        """Tokens of the answers to the newest turn's calls; None if they leave no room for a turn."""
        answered = conversation.collect_answers()
        return self.renderer.render(
            [call.name if call.name in self.toolbox.tools else UNKNOWN_TOOL for call, _ in answered],
            [answer.text for _, answer in answered],
            last_token=conversation.token_ids[-1] if conversation.token_ids else None,
            room=conversation.room - 1,
        )


class _Run:
    """The conversations of one `generate`."""

    def __init__(
        self,
        sampler: ToolSampler,
        toolbox: OpenToolbox,
        groups: GroupAssembly,
        sampling: Sampling,
        conversations: Sequence[Conversation],
    ) -> None:
        self.sampler, self.toolbox, self.groups, self.sampling = sampler, toolbox, groups, sampling
        self.conversations = {each.stream[:2]: each for each in conversations}
        longest = max((len(each.prompt.token_ids) + each.limit for each in conversations), default=0)
        self.queue = TurnQueue(self._continue, most=len(conversations), longest=longest)

    def first_turns(self, place: int, group: Group) -> None:
        for sample, completion in enumerate(group.completions):
            self._take(self.conversations[self.sampling.stream(place, sample)[:2]], completion)

    def later_turn(self, turn: NextTurn, completion: Completion) -> None:
        self._take(self.conversations[turn.continuation.stream[:2]], completion)

    def _take(self, conversation: Conversation, turn: Completion) -> None:
        """Add a turn; start its calls, or end the completion."""
        conversation.add_turn(turn)
        is_cut = turn.finish_reason is FinishReason.LENGTH
        calls = [] if is_cut else self.sampler.calls(turn)
        if not calls or conversation.turns >= self.sampler.max_turns:
            self._end(conversation, FinishReason.LENGTH if calls else turn.finish_reason)
            return
        key = f"{self.sampling.seed}/{self.sampling.step}/{conversation.stream}"
        item = conversation.prompt.item
        conversation.waiting = [
            (call, self.toolbox.submit(call, item, f"{key}/{number}", conversation.rollout))
            for number, call in enumerate(calls)
        ]
        self.queue.put_after(conversation, [future for _, future in conversation.waiting])

    def _continue(self, conversation: Conversation) -> NextTurn | None:
        """The next turn, after the answers to the calls of the last one; None if there is no room for it."""
        ids = self.sampler.answer_tokens(conversation)
        if ids is None:
            self._end(conversation, FinishReason.LENGTH)
            return None
        conversation.add_answers(ids)
        tokens = (*conversation.prompt.token_ids, *conversation.token_ids)
        continuation = Continuation(*conversation.stream, max_tokens=conversation.room)
        return NextTurn(replace(conversation.prompt, token_ids=tokens), continuation)

    def _end(self, conversation: Conversation, reason: FinishReason) -> None:
        self.toolbox.end(conversation.rollout)
        completion = conversation.completion(self.sampler.policy, reason)
        self.groups.add(conversation.place, conversation.sample, completion)
