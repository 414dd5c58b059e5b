"""`reward_model`: a Hugging Face sequence-classification model with one label scores the completion.

The model runs in a grading process, through `grpo_engine.models.reward_models`. That module is imported by
name when it is needed, because this one must not load torch.
"""

import importlib
import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from grpo_engine.contract.records import Sample
from grpo_engine.graders.base import Graded, RewardGrader, Template
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.template import render


class RewardModel(RewardGrader):
    """Reward = the model's one logit for the prompt and the completion.

    If the tokenizer has a chat template and there is a prompt, the model reads a user and an assistant turn;
    otherwise the two texts as a pair, or the completion alone. A text longer than the model's context is
    unscorable, never cut. The tokenizer reads control tokens that a completion spells out as such.
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
        """Load torch and the model. Raises ValueError if it is not a reward model."""
        _models().load(self._source(), self.revision)

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
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
        return Graded(logit if self.normalize == "none" else sigmoid(logit))

    def _source(self) -> str:
        if self.path is None:
            raise UnscorableError("other_error", f"the reward model {self.model!r} has no path")
        return self.path


def sigmoid(logit: float) -> float:
    """1 / (1 + exp(-logit)), without overflow."""
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    small = math.exp(logit)
    return small / (1 + small)


def _models() -> Any:
    return importlib.import_module("grpo_engine.models.reward_models")
