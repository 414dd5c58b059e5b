"""`reward_model`: a Hugging Face sequence-classification model with one label scores the completion.

Boundary: plain data. The model runs in a grading process, through `grpo_engine.models.reward_models`, which
is looked up by name when it is needed: this module must not load torch.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from grpo_engine.contract.records import Sample
from grpo_engine.graders.base import Execution, GraderBase, Template
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.template import render


class RewardModel(GraderBase):
    """Reward = the model's one logit for the prompt and the completion.

    Where the tokenizer has a chat template and there is a prompt, the model reads a user's and an
    assistant's turn; else the two texts as a pair, or the completion alone. A text that is longer than the
    model reads is unscorable, never cut. What the completion says is data: control tokens that it spells out
    are read as such by the tokenizer.
    """

    type: Literal["reward_model"]
    model: str = Field(min_length=1, max_length=256)
    """A name that the operator knows."""
    path: str | None = Field(None, max_length=4096)
    """Where that model lies: a folder with safetensors, or a hub id. The service's word, never a user's."""
    revision: str | None = Field(None, max_length=128)
    """Of a hub id: the service's word too."""
    input: Template = "{{sample.output_text}}"
    prompt: Template | None = None
    normalize: Literal["none", "sigmoid"] = "none"
    """sigmoid: 1 / (1 + exp(-logit)), between 0 and 1."""
    max_length: int | None = Field(None, ge=8, le=1_000_000)
    """Tokens of prompt and completion; what the model can read where not given."""

    @property
    def execution(self) -> Execution:
        return "process"

    @property
    def holds_a_model(self) -> bool:
        return True

    def templates(self) -> dict[str, str]:
        return {"input": self.input} | ({} if self.prompt is None else {"prompt": self.prompt})

    def prepare(self) -> None:
        """Load torch and the model. Raises ValueError where it is no reward model."""
        _models().load(self._source(), self.revision)

    def reward(self, sample: Sample, item: Mapping[str, Any]) -> float:
        completion = render(self.input, sample, item)
        prompt = None if self.prompt is None else render(self.prompt, sample, item)
        models = _models()
        try:
            logit = float(
                models.score(self._source(), self.revision, prompt, completion, max_length=self.max_length)
            )
        except models.TooLongError as error:
            raise UnscorableError("truncated_observation_error", str(error)) from None
        except models.RewardModelError as error:
            raise UnscorableError("other_error", str(error)) from None
        return logit if self.normalize == "none" else sigmoid(logit)

    def _source(self) -> str:
        if self.path is None:
            raise UnscorableError("other_error", f"nobody said where the reward model {self.model!r} lies")
        return self.path


def sigmoid(logit: float) -> float:
    """1 / (1 + exp(-logit)), without overflow."""
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    small = math.exp(logit)
    return small / (1 + small)


def _models() -> Any:
    return importlib.import_module("grpo_engine.models.reward_models")
