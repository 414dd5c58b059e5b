"""Requests of a training engine to a sampler on another device, and the replies."""

from grpo_engine.contract.events import Failed
from grpo_engine.contract.records import Record
from grpo_engine.objective.types import Completion
from grpo_engine.rollout.sampler.base import Sampling


class SampleRequest(Record):
    """P prompts of a step."""

    version: int
    """Version of the policy to sample from."""
    base_fingerprint: str
    """Fingerprint of the base model that is trained; empty: unknown."""
    context_tokens: int
    """Maximum tokens of a prompt and its completion; the same in all requests of a run."""
    prompts: tuple[tuple[int, ...], ...]
    """Token ids of each prompt."""
    group_size: int
    sampling: Sampling
    """Determines the random numbers, so that every sampler draws the same tokens."""


class SampleReply(Record):
    groups: tuple[tuple[Completion, ...], ...] = ()
    """[P][G] completions, in the order of the prompts."""
    failure: Failed | None = None
    """Why there are no completions, if the job is at fault."""
