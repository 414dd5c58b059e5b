"""Messages between a training engine and the launcher of its samplers on other devices.

The engine gets one end of a connection from its launcher (`CONNECTION`). It sends a `PolicyWritten` when the
weights of a new policy are in its run directory, and a `SamplingOrder` for each request; it receives a
`SamplingAnswer` to each, in any order. `rollout/sampler/remote/messages.py` defines the JSON of a request and
its reply.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from grpo_engine.contract.records import Record

CONNECTION = "GRPO_SAMPLERS"
"""Environment variable with the number of the file descriptor that the engine inherits."""


def policy_file(version: int) -> str:
    """Name of the file with the trained weights in a run directory: safetensors with whole parameters."""
    return f"policy-{version}.safetensors"


class PolicyWritten(Record):
    """The first rank has written the weights of this version."""

    kind: Literal["policy"] = "policy"
    version: int


class SamplingOrder(Record):
    """A request for one sampler, which must have this version of the policy."""

    kind: Literal["order"] = "order"
    number: int
    sampler: int
    """Index, from 0, of the sampler that gets the request first."""
    version: int
    request: str


class SamplingAnswer(Record):
    number: int
    """Number of the order."""
    reply: str = ""
    problem: str = ""
    """Why no sampler replied; empty if one did."""
    num_replaced: int = 0
    """How often the sampler has been restarted."""


ENGINE_MESSAGE: TypeAdapter[PolicyWritten | SamplingOrder] = TypeAdapter(
    Annotated[PolicyWritten | SamplingOrder, Field(discriminator="kind")]
)
