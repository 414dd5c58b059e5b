"""One rollout of a black-box agent while it grows."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_engine.chat.protocol import Answer, FunctionCall, Generate
from grpo_engine.config.environments import AgentEnvironment
from grpo_engine.config.messages import text_of
from grpo_engine.contract.records import Episode, EpisodeTurn, FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Prompt
from grpo_engine.rollout.agents.dialogue import Dialogue, Message, Row
from grpo_engine.rollout.agents.shared_prompt import joined
from grpo_engine.rollout.environments.sampler import MAX_SHOWN_CHARACTERS


@dataclass(eq=False)
class PendingRequest:
    """A request of an agent, until it is answered."""

    rollout: "AgentRollout"
    request: Generate
    answer: "Future[Answer]" = field(default_factory=Future)
    row: Row | None = None
    """The conversation that its turn continues."""
    is_cut_by_agent: bool = False
    """Whether the agent wants fewer tokens than the job allows."""


@dataclass(eq=False)
class AgentRollout:
    name: str
    """Name of its environment."""
    options: AgentEnvironment
    prompt: Prompt
    """The row of the dataset."""
    place: int
    """Position of the prompt among the prompts."""
    stream: tuple[int, int]
    """(prompt, sample), as in `Sampling.stream`."""
    seed: int
    dialogue: Dialogue
    turns: list[EpisodeTurn] = field(default_factory=list)
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Tool calls by id."""
    last: Completion | None = None
    """The newest turn."""
    has_started: bool = False
    """Whether the agent has requested a completion."""
    num_opened: int = 0
    """Requests that became turns, answered or not."""
    refusal: str = ""
    """Reason for the newest refusal; empty if no request was refused."""
    is_over: bool = False
    reward: float | None = None
    failure: str | None = None

    def follow(self, row: Row, messages: Sequence[Message]) -> None:
        """Record what followed the row's last turn; before a row's first turn, what followed the newest."""
        messages = messages[row.ends[-1].num_said :] if row.ends else messages
        for message in messages:
            call = self.calls.get(str(message.get("tool_call_id")))
            if call is not None:
                call["answer"] = text_of(message)
        if self.turns:
            number = row.ends[-1].number if row.ends else len(self.turns) - 1
            before = self.turns[number].observation
            said = "\n".join([*([before] if before else []), *map(text_of, messages)])
            update = {"observation": said[:MAX_SHOWN_CHARACTERS]}
            self.turns[number] = self.turns[number].model_copy(update=update)

    def add_turn(
        self, pending: PendingRequest, turn: Completion, text: str, calls: Sequence[FunctionCall], shown: str
    ) -> None:
        """Add a turn. `shown`: its text with its calls."""
        assert pending.row is not None
        pending.row.add_turn(turn, len(self.turns), text, calls)
        is_cut = turn.finish_reason is FinishReason.LENGTH and not pending.is_cut_by_agent
        reason = FinishReason.LENGTH if is_cut else FinishReason.STOP
        self.last = replace(turn, text=text, finish_reason=reason)
        self.turns.append(EpisodeTurn(action=shown[:MAX_SHOWN_CHARACTERS], observation=""))
        self.calls |= {
            each.id: {"name": each.name, "arguments": each.arguments, "answer": "", "error": False}
            for each in calls
        }

    def completion(self, policy: Policy, rows: Sequence[Row], start: int, version: int) -> Completion:
        """The rollout as one completion, whose conversations start after the group's `start` first tokens."""
        episode = Episode(
            environment=self.name,
            seed=self.seed,
            turns=tuple(self.turns),
            reward=None if self.failure else self.reward,
            failure=self.failure,
        )
        if self.last is None or not rows:
            return Completion("", (), (), FinishReason.LENGTH, version, episode=episode)
        token_ids, logprobs, sampled, row_starts = joined(rows, start)
        return replace(
            self.last,
            text=policy.completion_text(token_ids),
            token_ids=token_ids,
            logprobs=logprobs,
            sampled=() if all(sampled) else sampled,
            row_starts=row_starts,
            turns=len(self.turns),
            tool_calls=tuple(self.calls.values()),
            answer=self.last.text,
            finish_reason=FinishReason.LENGTH if self.failure else self.last.finish_reason,
            episode=episode,
        )
