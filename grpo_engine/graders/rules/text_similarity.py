"""`text_similarity`: how alike two texts are, from 0 to 1, by one of OpenAI's metrics.

No embeddings and no downloaded data. Texts are bounded and every metric is about linear in their length or
bit-parallel, so a completion costs milliseconds.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from grpo_engine.contract.records import Sample
from grpo_engine.graders import similarity
from grpo_engine.graders.base import Graded, RewardGrader, Template
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.feedback import excerpt
from grpo_engine.graders.template import render

MAX_CHARACTERS = 65_536
"""Longer texts are not compared."""


def _no_cosine(value: Any) -> Any:
    if value == "cosine":
        raise ValueError("cosine needs an embedding model, which is not supported; choose another metric")
    return value


MetricName = Literal[
    "fuzzy_match", "bleu", "gleu", "meteor", "rouge_1", "rouge_2", "rouge_3", "rouge_4", "rouge_5", "rouge_l"
]
Metric = Annotated[MetricName, BeforeValidator(_no_cosine)]


class TextSimilarity(RewardGrader):
    """The similarity of input and reference, from 0 to 1, by `evaluation_metric`.

    fuzzy_match: rapidfuzz's ratio of characters. bleu: sentence BLEU-4. gleu: Google BLEU. meteor: METEOR
    over exact and stem matches. rouge_1 to rouge_5: F1 of common n-grams. rouge_l: F1 of the longest common
    subsequence of words.
    """

    template_fields = ("input", "reference")

    type: Literal["text_similarity"]
    input: Template
    """Template of the text to grade, such as `{{sample.output_text}}`."""
    reference: Template
    """Template of the text to compare with, such as `{{item.answer}}`."""
    evaluation_metric: Metric
    """Similarity metric, from 0 to 1."""

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        text, reference = render(self.input, sample, item), render(self.reference, sample, item)
        for name, each in (("input", text), ("reference", reference)):
            if len(each) > MAX_CHARACTERS:
                raise UnscorableError("other_error", f"{name} is longer than {MAX_CHARACTERS} characters")
        reward = similarity.METRICS[self.evaluation_metric](text, reference)
        if reward == 1.0:
            return Graded(reward)
        expected = f"expected a text like {excerpt(reference)}"
        return Graded(reward, f"{self.evaluation_metric} is {reward:.2f}, {expected}")
