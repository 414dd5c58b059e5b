"""Episodes as a sampler: the model acts, its environment answers, until the episode is over.

It wraps any sampler and is one itself. Token-in, token-out: each turn continues from exactly the ids that
were sampled before it. The first observation extends the prompt, so the group shares it; later ones are
messages of the user. All observations count in `max_completion_tokens`, so no episode is longer than a
completion may be.

An episode is cut (finish reason `length`) at that limit or at `max_turns`. If its session fails, the
completion keeps its tokens and is unscorable.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Self

from anyio.from_thread import start_blocking_portal

from grpo_engine.config.environments import Environment, OpenEnvEnvironment
from grpo_engine.contract.errors import ConfigError, DatasetError, EnvironmentUnreachableError
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Group, Prompt
from grpo_engine.outbound.addresses import RefusedUrl
from grpo_engine.outbound.openenv import EnvironmentFailure, action_schema
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.environments.actions import ActionReader
from grpo_engine.rollout.environments.failures import FailedBatches
from grpo_engine.rollout.environments.play import Play
from grpo_engine.rollout.sampler.base import AroundSampler, OnGroup, Sampler, Sampling
from grpo_engine.rollout.tools.calls import CallReader
from grpo_engine.rollout.tools.rendering import AnswerRenderer, tool_format

PAUSE_SECONDS = 0.5


def refuse_unknown_environments(prompts: Sequence[Prompt], environments: Mapping[str, Environment]) -> None:
    """Raise DatasetError for a row whose `environment` or `reset` cannot be used."""
    for prompt in prompts if environments else ():
        name, reset = prompt.item.get("environment"), prompt.item.get("reset")
        if name not in environments:
            message = f"row {prompt.row + 1}: environment is {name!r}, not one of {', '.join(environments)}"
            raise DatasetError(message)
        if not (reset is None or isinstance(reset, dict)):
            raise DatasetError(f"row {prompt.row + 1}: reset must be an object")


class EnvironmentSampler(AroundSampler):
    """Raises EnvironmentUnreachableError if a server gives no schema, or if all sessions fail repeatedly."""

    def __init__(
        self,
        inner: Sampler,
        policy: Policy,
        environments: Mapping[str, OpenEnvEnvironment],
        reader: RowReader,
        schemas: Mapping[str, Mapping[str, object]] | None = None,
    ) -> None:
        super().__init__(inner)
        self.policy, self.environments, self.reader = policy, environments, reader
        self.schemas = schemas or {name: _schema(name, each) for name, each in environments.items()}
        known = tool_format(policy.tokenizer)
        calls = CallReader(known, ())
        self.actions = {name: ActionReader(schema, calls) for name, schema in self.schemas.items()}
        self.renderer = AnswerRenderer(policy.tokenizer, policy.stop_set, known)
        self.failed_batches = FailedBatches()

    def around(self, inner: Sampler, policy: Policy) -> Self:
        """The same for another policy."""
        return type(self)(inner, policy, self.environments, self.reader, self.schemas)

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        """P prompts → P groups; environments answer while other episodes are sampled."""
        with start_blocking_portal(name="environments") as portal:
            play = Play(self, portal, prompts_P, group_size, sampling, on_group)
            play.run()
        groups = play.groups.groups()
        self.failed_batches.add(groups)
        return groups


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
