"""A sampler whose completions a test writes, without a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Group, Prompt
from grpo_engine.rollout.sampler.base import OnGroup, OnTurn, Sampling
from grpo_engine.rollout.sampler.turns import TurnQueue, sample_in_rounds

Stream = tuple[int, int, int]
"""(prompt, sample, turn)."""


@dataclass
class ScriptedSampler:
    """`says(stream)`: a turn's text, which gets its end token, or its token ids as they are."""

    policy: Policy
    says: Callable[[Stream], str | Sequence[int]]
    matches_trainer: bool = True
    version: int = 0
    heard: dict[Stream, tuple[int, ...]] = field(default_factory=dict)
    """The prompt's ids that each turn began from."""

    def rest(self) -> dict[str, float]:
        return {}

    def load_policy(self, version: int) -> None:
        self.version = version

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        groups = []
        for place, prompt in enumerate(prompts_P):
            streams = [sampling.stream(place, sample) for sample in range(group_size)]
            self.heard |= dict.fromkeys(streams, prompt.token_ids)
            completions = [self._completion(stream, sampling.limit(place)) for stream in streams]
            groups.append(Group(prompt, tuple(completions)))
            if on_group is not None:
                on_group(place, groups[-1])
        return groups

    def sample_turns(self, turns: TurnQueue, sampling: Sampling, on_turn: OnTurn) -> None:
        sample_in_rounds(self, turns, sampling, on_turn)

    def _completion(self, stream: Stream, limit: int) -> Completion:
        said = self.says(stream)
        end = self.policy.tokenizer.eos_token_id
        ids = [*encoded(self.policy, said), end] if isinstance(said, str) else list(said)
        cut = len(ids) > limit
        ids = ids[:limit]
        return Completion(
            text=self.policy.decode(ids[:-1] if ids[-1] == end else ids),
            token_ids=tuple(ids),
            logprobs=(-0.5,) * len(ids),
            finish_reason=FinishReason.LENGTH if cut else FinishReason.STOP,
            policy_version=self.version,
        )


def encoded(policy: Policy, text: str) -> list[int]:
    """One token a character: no special token comes out of it."""
    return list(policy.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids)
