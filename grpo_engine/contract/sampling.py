"""Messages between a training engine and the launcher of its samplers on other devices.

The engine gets one end of a connection from its launcher (`CONNECTION`). It sends a `PolicyWritten` when the
weights of a new policy are in its run directory, and a `SamplingOrder` for each request; it receives a
`SamplingAnswer` to each, in any order. A request and its reply are JSON of
`rollout/sampler/remote/messages.py`.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from grpo_engine.contract.records import Record

CONNECTION = "GRPO_SAMPLERS"
"""Variable with the number of an engine's inherited descriptor."""


def policy_file(version: int) -> str:
    """Name of the trained weights in a run directory: safetensors of whole parameters."""
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
    """The sampler that is asked first, from 0."""
    version: int
    request: str


class SamplingAnswer(Record):
    number: int
    """Of the order."""
    reply: str = ""
    problem: str = ""
    """Why no sampler replied; empty: one did."""
    num_replaced: int = 0
    """How often the sampler has been started again."""


ENGINE_MESSAGE: TypeAdapter[PolicyWritten | SamplingOrder] = TypeAdapter(
    Annotated[PolicyWritten | SamplingOrder, Field(discriminator="kind")]
)
