"""`text_similarity`: how alike two texts are, from 0 to 1, by a metric of OpenAI's list.

Boundary: surface forms only, no embeddings, no downloaded data. Every metric takes time about linear in the
text or is computed by bit-parallel code, and texts are bounded, so a completion costs milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from grpo_engine.contract.records import Sample
from grpo_engine.graders import similarity
from grpo_engine.graders.base import RewardGrader, Template
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.feedback import excerpt
from grpo_engine.graders.template import render

MAX_CHARACTERS = 65_536
"""Of either text; a longer one is not compared."""


def _no_cosine(value: Any) -> Any:
    if value == "cosine":
        raise ValueError("cosine needs an embedding model of OpenAI's; choose another metric")
    return value


Metric = Annotated[
    Literal[
        "fuzzy_match",
        "bleu",
        "gleu",
        "meteor",
        "rouge_1",
        "rouge_2",
        "rouge_3",
        "rouge_4",
        "rouge_5",
        "rouge_l",
    ],
    BeforeValidator(_no_cosine),
]


class TextSimilarity(RewardGrader):
    """The metric of the input against the reference; see `similarity.py` for the definitions."""

    type: Literal["text_similarity"]
    input: Template
    """Template of the text to grade, such as `{{sample.output_text}}`."""
    reference: Template
    """Template of the text to compare with, such as `{{item.answer}}`."""
    evaluation_metric: Metric
    """Similarity metric, from 0 to 1."""

    def templates(self) -> dict[str, str]:
        return {"input": self.input, "reference": self.reference}

    def reward(self, sample: Sample, item: Mapping[str, Any]) -> float:
        text, reference = render(self.input, sample, item), render(self.reference, sample, item)
        for name, each in (("input", text), ("reference", reference)):
            if len(each) > MAX_CHARACTERS:
                raise UnscorableError("other_error", f"{name} is longer than {MAX_CHARACTERS} characters")
        return similarity.METRICS[self.evaluation_metric](text, reference)

    def feedback(self, sample: Sample, item: Mapping[str, Any], reward: float) -> str:
        if reward == 1.0:
            return ""
        reference = excerpt(render(self.reference, sample, item))
        return f"{self.evaluation_metric} is {reward:.2f}, expected a text like {reference}"
