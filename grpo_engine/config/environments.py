"""Environments in which a job's model acts, turn by turn."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from grpo_engine.config.recipes import problem_at
from grpo_engine.contract.records import Input
from grpo_engine.graders import Grader
from grpo_engine.graders.rules.endpoint import EnvironmentReward
from grpo_engine.graders.rules.multi import Multi
from grpo_engine.outbound.addresses import check_url

EnvironmentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]


class OpenEnvEnvironment(Input):
    """A server that speaks OpenEnv's protocol (package `openenv` 0.10). Each completion is one episode."""

    type: Literal["openenv"]
    url: Annotated[str, Field(max_length=2000), AfterValidator(check_url)]
    """Base URL of the server: https with a public host name on port 443 or 8443, or a host that the operator
    allows. Episodes connect to `/ws` below it."""
    reset: dict[str, Any] = {}
    """Arguments of every `reset`; a row's own `reset` is merged over them. A seed is added unless one is
    given: all completions of a group get the same one."""
    max_turns: int = Field(8, ge=1, le=128)
    """Maximum turns of the model in one episode."""
    timeout_seconds: float = Field(30.0, gt=0, le=600)
    """Time limit of each answer, and of the wait for a server that is full or cannot be reached."""
    concurrency: int = Field(64, ge=1, le=1024)
    """Maximum number of sessions that are open at the same time."""
    reward: Literal["last", "sum"] = "last"
    """The episode's reward: the last that a step gave, or the sum of all. Without any, it is unscorable."""
    malformed_action: Literal["observe", "end"] = "observe"
    """What follows a turn that is not a valid action: an observation with the error, or the episode's end."""


class AgentEnvironment(Input):
    """An agent that requests completions from the policy over HTTP. Each rollout is one task that it works
    on."""

    type: Literal["agent"]
    url: Annotated[str, Field(max_length=2000), AfterValidator(check_url)]
    """URL to which each rollout is posted: https with a public host name on port 443 or 8443, or a host that
    the operator allows. The agent must reach the machine that trains."""
    max_turns: int = Field(32, ge=1, le=256)
    """Maximum number of completions of one rollout."""
    timeout_seconds: float = Field(600.0, gt=0, le=7200)
    """Time limit of a rollout; one that is not over by then is unscorable."""
    concurrency: int = Field(64, ge=1, le=1024)
    """Maximum number of rollouts that the agent works on at the same time."""


Environment = Annotated[OpenEnvEnvironment | AgentEnvironment, Field(discriminator="type")]


def refuse_environment_reward(grader: Grader | None, *place: str | int) -> None:
    """Raise a problem at this place if the grader, in a job without environments, needs their reward."""
    parts = grader.graders.values() if isinstance(grader, Multi) else [grader]
    if any(isinstance(part, EnvironmentReward) for part in parts):
        raise problem_at("the grader environment needs a job with environments", *place)
