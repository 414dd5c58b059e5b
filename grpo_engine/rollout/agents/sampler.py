"""Rollouts of black-box agents as a sampler: each agent asks for completions until its task is done.

It wraps any sampler and is one itself. Prompts, sampled tokens and their log-probabilities are recorded as
they are sampled; what the agent adds is never trained on. A conversation that does not continue an earlier
one becomes another row of the same completion (`Completion.row_starts`).

No row is longer than the longest prompt of the dataset with `max_completion_tokens` after it. A rollout
fails, and is unscorable, if the agent fails or is too slow.
"""

import socket
from collections.abc import Mapping, Sequence
from typing import Self

from grpo_engine.config.environments import AgentEnvironment
from grpo_engine.contract.errors import ConfigError
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Group, Prompt
from grpo_engine.rollout.agents.conversations import Conversations
from grpo_engine.rollout.agents.door import Door
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.environments.failures import FailedBatches
from grpo_engine.rollout.sampler.base import AroundSampler, OnGroup, Sampler, Sampling
from grpo_engine.rollout.tools.rendering import AnswerRenderer, tool_format


class AgentSampler(AroundSampler):
    """Raises EnvironmentUnreachableError if all rollouts fail repeatedly."""

    def __init__(
        self,
        inner: Sampler,
        policy: Policy,
        environments: Mapping[str, AgentEnvironment],
        created_at: float,
        context: int,
        host: str | None,
        ports: tuple[int, int] | None = None,
    ) -> None:
        """`created_at`: date that chat templates print, seconds of Unix time; `context`: maximum tokens of a
        conversation; `host`: name or address of this machine at which agents reach it, None: its name;
        `ports`: first and last port there, None: any."""
        super().__init__(inner)
        self.policy, self.environments, self.context = policy, environments, context
        self.created_at = created_at
        self.reader = RowReader(policy.tokenizer, created_at)
        self.host = host or socket.gethostname()
        self.ports = ports
        self.format = tool_format(policy.tokenizer)
        self.renderer = AnswerRenderer(policy.tokenizer, policy.stop_set, self.format)
        self.failed_batches = FailedBatches()

    def around(self, inner: Sampler, policy: Policy) -> Self:
        """The same for another policy."""
        return type(self)(
            inner, policy, self.environments, self.created_at, self.context, self.host, self.ports
        )

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        """P prompts → P groups. Raises ConfigError if the machine has no such address or no free port."""
        first, last = self.ports or (0, 0)
        try:
            door = Door(self.host, range(first, last + 1), num_rollouts=len(prompts_P) * group_size)
        except OSError as error:
            where = f"GRPO_SERVE_HOST={self.host}" + (f", ports {first} to {last}" if self.ports else "")
            raise ConfigError(f"cannot listen at {where}: {error}") from error
        with door:
            conversations = Conversations(self, door, prompts_P, group_size, sampling, on_group)
            conversations.run()
        groups = conversations.groups.groups()
        self.failed_batches.add(groups)
        return groups
