"""A job's black-box agents: each requests completions until its task is done.

Prompts, sampled tokens and their log-probabilities are recorded as they are sampled; what the agent adds is
never trained on. A conversation that does not continue an earlier one becomes another row of the same
completion (`Completion.row_starts`).

No row is longer than the longest prompt of the dataset with `max_completion_tokens` after it. A rollout
fails, and is unscorable, if the agent fails or is too slow.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Self

from grpo_engine.config.environments import AgentEnvironment
from grpo_engine.contract.errors import ConfigError
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.agents.completion_server import CompletionServer
from grpo_engine.rollout.agents.conversations import Conversations
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.environments.sampler import Rollouts
from grpo_engine.rollout.sampler.base import OnTurn
from grpo_engine.rollout.tools.rendering import AnswerRenderer, tool_format


@dataclass
class Agents:
    policy: Policy
    environments: Mapping[str, AgentEnvironment]
    created_at: float
    """Date that chat templates print, in seconds of Unix time."""
    context: int
    """Maximum tokens of a conversation."""
    host: str | None
    """Name or address of this machine at which agents reach it; None: its host name."""
    ports: tuple[int, int] | None = None
    """First and last port at which agents reach it; None: any."""

    def __post_init__(self) -> None:
        self.reader = RowReader(self.policy.tokenizer, self.created_at)
        self.format = tool_format(self.policy.tokenizer)
        self.renderer = AnswerRenderer(self.policy, self.format)

    def around(self, policy: Policy) -> Self:
        return replace(self, policy=policy)

    @contextmanager
    def open(self, rollouts: Rollouts) -> Iterator[OnTurn]:
        """Raises ConfigError if the machine has no such address or no free port."""
        host, (first, last) = self.host or socket.gethostname(), self.ports or (0, 0)
        num_rollouts = len(rollouts.places) * rollouts.groups.group_size
        try:
            server = CompletionServer(host, range(first, last + 1), num_rollouts)
        except OSError as error:
            where = f"GRPO_SERVE_HOST={host}" + (f", ports {first} to {last}" if self.ports else "")
            raise ConfigError(f"cannot listen at {where}: {error}") from error
        with closing(server):
            conversations = Conversations(self, server, rollouts)
            try:
                yield conversations.answer
            finally:
                conversations.has_ended = True
