"""Tool use as a sampler: the model speaks, its calls run, their answers follow, the model speaks again.

It wraps any sampler and is one itself, so trainer and collector know nothing of tools. Token-in, token-out:
each turn continues from exactly the ids that were sampled before it, the answers' ids between them.

A completion ends when a turn calls nothing, or cut (finish reason `length`): at `max_tokens`, which counts
the tools' tokens too, at the model's context, or when the model calls in its last turn. Answers are cut to
what leaves the model at least one token; where not even their frame fits, the completion ends before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from grpo_engine.config.tools import HttpTool, PythonTool
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt
from grpo_engine.rollout.sampler.base import AroundSampler, Continuation, OnGroup, Sampler, Sampling
from grpo_engine.rollout.tools.calls import find_calls
from grpo_engine.rollout.tools.rendering import AnswerRenderer
from grpo_engine.rollout.tools.talks import Groups, Talk
from grpo_engine.rollout.tools.toolbox import Counter, Toolbox

UNKNOWN_TOOL = "unknown"
"""Name that templates read for a tool that is none: the model's own word is never rendered."""


class ToolSampler(AroundSampler):
    """Samples completions of up to `max_turns` turns. Raises ConfigError where a tool cannot work here."""

    def __init__(
        self, inner: Sampler, policy: Policy, tools: Sequence[PythonTool | HttpTool], *, max_turns: int
    ) -> None:
        super().__init__(inner)
        self.policy = policy
        self.toolbox = Toolbox(tools)
        self.renderer = AnswerRenderer(policy.tokenizer, policy.stop_set)
        self.max_turns = max_turns

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        """P prompts → P groups; calls run while other completions are still sampled."""
        talks = [
            Talk(prompt, sampling.stream(place, sample), self._limit(prompt, sampling))
            for place, prompt in enumerate(prompts_P)
            for sample in range(group_size)
        ]
        groups = Groups(prompts_P, talks, group_size, on_group)
        with self.toolbox.open() as counter:

            def first_turn(place: int, group: Group) -> None:
                for talk, completion in zip(groups.talks_of(place), group.completions, strict=True):
                    self._hear(talk, completion, counter, sampling)
                groups.tell(place)

            self.inner.generate(prompts_P, group_size, sampling, first_turn)
            while speaking := self._answered(talks, groups):
                self._next_turn(speaking, groups, counter, sampling)
        return groups.all()

    def _limit(self, prompt: Prompt, sampling: Sampling) -> int:
        """Tokens of a whole completion."""
        context = self.policy.max_length
        return (
            sampling.max_tokens
            if context is None
            else min(sampling.max_tokens, context - len(prompt.token_ids))
        )

    def _hear(self, talk: Talk, completion: Completion, counter: Counter, sampling: Sampling) -> None:
        """A turn: it ends the completion, or its calls start running."""
        talk.hear(completion)
        if completion.finish_reason is FinishReason.LENGTH:
            talk.end(self.policy, FinishReason.LENGTH)
            return
        calls = find_calls(cast(str, self.policy.tokenizer.decode(list(completion.token_ids))))
        if not calls:
            talk.end(self.policy, completion.finish_reason)
        elif talk.turns >= self.max_turns:
            talk.end(self.policy, FinishReason.LENGTH)
        else:
            item, name = talk.prompt.item, f"{sampling.seed}/{sampling.step}/{talk.name}"
            talk.waiting = [
                (call, counter.submit(call, item, f"{name}/{number}")) for number, call in enumerate(calls)
            ]

    def _answered(self, talks: Sequence[Talk], groups: Groups) -> list[Talk]:
        """Those whose calls have been answered and that may speak again."""
        for talk in talks:
            if talk.waiting and not self._answer(talk):
                talk.end(self.policy, FinishReason.LENGTH)
                groups.tell_of(talk)
        return [talk for talk in talks if talk.completion is None]

    def _answer(self, talk: Talk) -> bool:
        """Appends the answers of the newest turn; False where there is no room for them."""
        answered = talk.collect()
        ids = self.renderer.render(
            [call.name if call.name in self.toolbox.tools else UNKNOWN_TOOL for call, _ in answered],
            [answer.text for _, answer in answered],
            last_token=talk.token_ids[-1] if talk.token_ids else None,
            room=talk.room - 1,
        )
        if ids is None:
            return False
        talk.append(ids)
        return True

    def _next_turn(
        self, speaking: Sequence[Talk], groups: Groups, counter: Counter, sampling: Sampling
    ) -> None:
        """All that go on in one call of the inner sampler, each as its own prompt."""

        def heard(place: int, group: Group) -> None:
            self._hear(speaking[place], group.completions[0], counter, sampling)
            groups.tell_of(speaking[place])

        continuing = tuple(Continuation(*talk.name, max_tokens=talk.room) for talk in speaking)
        longest = max(each.max_tokens for each in continuing)
        prompts = [
            replace(talk.prompt, token_ids=(*talk.prompt.token_ids, *talk.token_ids)) for talk in speaking
        ]
        self.inner.generate(prompts, 1, replace(sampling, max_tokens=longest, continuing=continuing), heard)
