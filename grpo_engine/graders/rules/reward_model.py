"""`reward_model`: a Hugging Face sequence-classification model with one label scores the completion.

The model runs in a grading process of its own program, because this module must not load torch.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from pydantic import Field

from grpo_engine.contract.records import Sample
from grpo_engine.graders.base import Graded, RewardGrader, Template
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.template import render


class RewardModels(Protocol):
    """What `models/reward/models.py` provides. Both raise UnscorableError."""

    def load(self, path: str, revision: str | None) -> object: ...

    def score(
        self, path: str, revision: str | None, prompt: str | None, completion: str, *, max_length: int | None
    ) -> float: ...


models: RewardModels | None = None
"""Set by a process that may load torch (`SERVER`)."""
SERVER = "grpo_engine.models.reward.server"


class RewardModel(RewardGrader):
    """Reward = the model's one logit for the prompt and the completion.

    If the tokenizer has a chat template and there is a prompt, the model reads a user and an assistant turn;
    otherwise the two texts as a pair, or the completion alone. A text longer than the model's context is
    unscorable, never cut. A control token that a completion spells out is read as that token.
    """

    runs_in = "process"
    template_fields = ("input", "prompt")

    type: Literal["reward_model"]
    model: str = Field(min_length=1, max_length=256)
    """Name of a reward model that the operator provides."""
    path: str | None = Field(None, max_length=4096)
    """Set by the service: a folder with safetensors, or a hub id."""
    revision: str | None = Field(None, max_length=128)
    """Set by the service: revision of a hub id."""
    input: Template = "{{sample.output_text}}"
    """Template of the text to grade; by default the completion."""
    prompt: Template | None = None
    """Template of the prompt that the model reads before the completion; null: none."""
    normalize: Literal["none", "sigmoid"] = "none"
    """sigmoid: 1 / (1 + exp(-logit)), between 0 and 1; none: the logit itself."""
    max_length: int | None = Field(None, ge=8, le=1_000_000)
    """Maximum tokens of prompt and completion; null: what the model supports."""

    @property
    def holds_a_model(self) -> bool:
        return True

    def prepare(self) -> None:
        """Load torch and the model. Raises UnscorableError if it is not a reward model."""
        _provided().load(self._source(), self.revision)

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        completion = render(self.input, sample, item)
        prompt = None if self.prompt is None else render(self.prompt, sample, item)
        source, limit = self._source(), self.max_length
        logit = _provided().score(source, self.revision, prompt, completion, max_length=limit)
        return Graded(logit if self.normalize == "none" else sigmoid(logit))

    def _source(self) -> str:
        if self.path is None:
            raise UnscorableError("other_error", f"the reward model {self.model!r} has no path")
        return self.path


def sigmoid(logit: float) -> float:
    """1 / (1 + exp(-logit)), without overflow."""
    return (1 + math.tanh(logit / 2)) / 2


def _provided() -> RewardModels:
    if models is None:
        raise UnscorableError("other_error", "this process loads no reward models")
    return models
