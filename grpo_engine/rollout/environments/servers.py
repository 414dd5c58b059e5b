"""A job's OpenEnv environments: the model acts, its environment answers, until the episode is over.

Token-in, token-out: each turn continues from exactly the ids that were sampled before it. The first
observation extends the prompt, so the group shares it; later ones are messages of the user. All
observations count toward `max_completion_tokens`, so no episode is longer than a completion may be.

An episode is cut (finish reason `length`) at that limit or at `max_turns`. If its session fails, the
completion keeps its tokens and is unscorable. A turn that calls a tool of the job is answered by the tool;
any other turn is an action.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from typing import Self

from anyio.from_thread import start_blocking_portal

from grpo_engine.config.environments import OpenEnvEnvironment
from grpo_engine.config.tools import Tool
from grpo_engine.contract.errors import ConfigError, EnvironmentUnreachableError
from grpo_engine.models.policy import Policy
from grpo_engine.outbound.addresses import RefusedUrl
from grpo_engine.outbound.openenv import EnvironmentFailure, action_schema
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.environments.actions import ActionReader
from grpo_engine.rollout.environments.episodes import Episodes
from grpo_engine.rollout.environments.sampler import Rollouts
from grpo_engine.rollout.sampler.base import OnTurn
from grpo_engine.rollout.tools.use import ToolUse

PAUSE_SECONDS = 0.5


class OpenEnvServers:
    """The OpenEnv servers of a job. Raises EnvironmentUnreachableError if one returns no schema."""

    def __init__(
        self,
        policy: Policy,
        environments: Mapping[str, OpenEnvEnvironment],
        reader: RowReader,
        tools: Sequence[Tool] = (),
        schemas: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        self.policy, self.environments, self.reader = policy, environments, reader
        self.schemas = schemas or {name: _schema(name, each) for name, each in environments.items()}
        self.use = ToolUse(policy, tools)
        self.actions = {name: ActionReader(schema, self.use.reader) for name, schema in self.schemas.items()}

    def around(self, policy: Policy) -> Self:
        reader = copy(self.reader)  # two threads must not use one tokenizer
        reader.tokenizer = policy.tokenizer
        return type(self)(policy, self.environments, reader, self.use.tools, self.schemas)

    @contextmanager
    def open(self, rollouts: Rollouts) -> Iterator[OnTurn]:
        with start_blocking_portal(name="environments") as portal, self.use.toolbox.open() as toolbox:
            play = Episodes(self, portal, toolbox, rollouts)
            try:
                yield play.act
            finally:
                play.close()


def _schema(name: str, options: OpenEnvEnvironment) -> Mapping[str, object]:
    """The environment's schema of actions; waits up to its timeout for a server that cannot be reached."""
    end = time.monotonic() + options.timeout_seconds
    while True:
        try:
            return action_schema(options.url, timeout_seconds=options.timeout_seconds)
        except RefusedUrl as error:
            raise ConfigError(f"environments.{name}.url: {error}") from error
        except EnvironmentFailure as error:
            if time.monotonic() + PAUSE_SECONDS >= end:
                raise EnvironmentUnreachableError(f"environment {name}: {error}") from error
        time.sleep(PAUSE_SECONDS)
