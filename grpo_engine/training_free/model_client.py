"""The interface to a model that runs in this process or behind an endpoint."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from grpo_engine.contract.records import FinishReason
from grpo_engine.objective.types import Completion
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.training_free.prompts import Row


@dataclass(frozen=True, slots=True)
class Reply(Completion):
    """A completion known only as text, without token ids; or the reason why there is none."""

    num_tokens: int = 0
    """Completion tokens as the server counts them."""
    num_prompt_tokens: int = 0
    failure: str | None = None
    """Why there is no answer. If it is set, the text is empty and is not graded."""


def failed_reply(reason: str, version: int) -> Reply:
    return Reply("", (), (), FinishReason.STOP, version, failure=reason)


OnRow = Callable[[int, tuple[Completion, ...]], None]
"""Called with a row's position as soon as its last answer has arrived."""


class ModelClient(Protocol):
    label: str

    def answer(
        self,
        rows: Sequence[Row],
        count: int,
        sampling: Sampling,
        *,
        version: int = 0,
        on_row: OnRow | None = None,
    ) -> list[tuple[Completion, ...]]:
        """`count` answers to each row, in the order of the rows, with `version` as their policy version.

        Raises EngineError if the model fails.
        """
        ...

    def fits(self, row: Row, max_tokens: int) -> bool:
        """Whether the row leaves room for an answer of `max_tokens` tokens."""
        ...
