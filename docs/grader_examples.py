"""One example for each grader's reference page; the tests run those that need no other server."""

from dataclasses import dataclass, field
from typing import Any

GRADE = (
    "def grade(sample, item):\n"
    "    words = sample['output_text'].split()\n"
    "    return max(0.0, 1.0 - abs(len(words) - item['words']) / item['words'])"
)


@dataclass(frozen=True)
class Example:
    """A request of `POST /v1/fine_tuning/alpha/graders/run`."""

    grader: dict[str, Any]
    sample: str
    item: dict[str, Any] = field(default_factory=dict)
    reward: float | None = None
    """Expected reward; None if the example needs a worker or another server."""
    note: str = ""

    def request(self) -> dict[str, Any]:
        return {"grader": self.grader, "item": self.item, "model_sample": self.sample}


EXAMPLES: dict[str, Example] = {
    "string_check": Example(
        {
            "type": "string_check",
            "name": "verdict",
            "operation": "ilike",
            "input": "{{sample.output_text}}",
            "reference": "spam",
        },
        "This is SPAM.",
        reward=1.0,
    ),
    "text_similarity": Example(
        {
            "type": "text_similarity",
            "name": "close",
            "input": "{{sample.output_text}}",
            "reference": "{{item.answer}}",
            "evaluation_metric": "rouge_1",
        },
        "the cat lay on the mat",
        {"answer": "the cat sat on the mat"},
        reward=0.833,
        note="OpenAI's metric `cosine` is refused: it needs an embedding model.",
    ),
    "numeric": Example(
        {"type": "numeric", "reference": "{{item.answer}}"},
        "So that makes $1,200.00.",
        {"answer": 1200},
        reward=1.0,
    ),
    "math": Example(
        {"type": "math", "reference": "${{item.answer}}$"},
        "Hence \\boxed{0.5}.",
        {"answer": "\\frac{1}{2}"},
        reward=1.0,
    ),
    "format": Example(
        {"type": "format", "tags": ["think", "answer"]},
        "<think>17 + 25</think><answer>42</answer>",
        reward=1.0,
    ),
    "length": Example(
        {"type": "length", "mode": "linear", "unit": "characters", "target": 20, "maximum": 40},
        "thirty characters of text here",
        reward=-0.5,
    ),
    "code_tests": Example(
        {"type": "code_tests", "tests": "{{item.tests}}"},
        "```python\ndef add(a, b):\n    return a + b\n```",
        {
            "tests": [
                {"call": "add", "args": [1, 2], "expected": 3},
                {"call": "add", "args": [2, 2], "expected": 5},
            ]
        },
        reward=0.5,
    ),
    "python": Example(
        {"type": "python", "name": "close", "source": GRADE}, "one two three", {"words": 4}, reward=0.75
    ),
    "reasoning_gym": Example(
        {"type": "reasoning_gym", "tag": "answer"},
        "4 - 9 is <answer>-5.0</answer>",
        {
            "answer": "-5",
            "reasoning_gym": {"task": "chain_sum", "config": {}, "metadata": {"expression": "4 - 9"}},
        },
        reward=1.0,
        note="[Task suites](../../write-a-job/suites.md) have such rows, and this grader by default.",
    ),
    "process": Example(
        {
            "type": "process",
            "splitter": "lines",
            "grader": {"type": "format", "pattern": "[0-9]+ .*", "match": "full"},
        },
        "1 first\nsecond",
        reward=0.5,
        note="Set `advantage` to `process` to train each token on the steps that end at or after it.",
    ),
    "score_model": Example(
        {
            "type": "score_model",
            "name": "judge",
            "model": "gpt-4o-mini",
            "endpoint": "default",
            "input": [
                {
                    "role": "user",
                    "content": "Rate from 0 to 1 how polite this text is:\n{{sample.output_text}}",
                }
            ],
        },
        "With pleasure!",
        note="The operator names the judge's server in the file of `GRPO_ENDPOINTS`.",
    ),
    "reward_model": Example(
        {"type": "reward_model", "model": "my-reward-model", "prompt": "{{item.question}}"},
        "Paris.",
        {"question": "What is the capital of France?"},
        note="It runs on the worker only; `graders/run` refuses it with `grader_needs_worker`.",
    ),
    "environment": Example(
        {"type": "environment"},
        "b",
        note="It needs a job with [environments](../../write-a-job/environments.md) and is its default "
        "grader. `graders/run` has no environment, so it cannot score there.",
    ),
    "endpoint": Example(
        {"type": "endpoint", "url": "https://graders.example.com/score"},
        "It is 42.",
        {"answer": 42},
        note='The server receives `{"sample", "item", "trace_id"}` and returns `{"score": 0.7}`, with an '
        "optional `feedback`.",
    ),
    "multi": Example(
        {
            "type": "multi",
            "calculate_output": "0.8 * right + 0.2 * shape",
            "graders": {
                "right": {"type": "numeric", "reference": "{{item.answer}}", "tag": "answer"},
                "shape": {"type": "format", "tags": ["think", "answer"]},
            },
        },
        "<think>17 + 25</think><answer>43</answer>",
        {"answer": 42},
        reward=0.2,
    ),
}
