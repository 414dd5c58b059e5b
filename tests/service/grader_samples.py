"""A grader of every type for any rows, those of OpenAI with the class by which their client reads them."""

from typing import Any

from openai.types.graders import PythonGrader, StringCheckGrader, TextSimilarityGrader

NUMERIC = {"type": "numeric", "reference": "{{item.answer}}"}
FORMAT = {"type": "format", "pattern": "[0-9]+", "match": "search"}
OWN_GRADERS: list[dict[str, Any]] = [
    NUMERIC,
    FORMAT,
    {"type": "length", "mode": "linear", "unit": "characters", "target": 5, "maximum": 9},
    {"type": "multi", "graders": {"a": NUMERIC, "b": FORMAT}, "calculate_output": "a + 0.1 * b"},
    {"type": "math", "reference": "{{item.answer}}"},
    {"type": "code_tests", "tests": '[{"call": "f", "args": [], "expected": 1}]'},
    {"type": "process", "grader": NUMERIC},
    {"type": "reward_model", "model": "tiny"},
    {"type": "endpoint", "url": "https://grade.example.com/run"},
]
TEXT = {"input": "{{sample.output_text}}", "reference": "{{item.answer}}"}
OPENAIS_GRADERS: list[tuple[type[object], dict[str, Any]]] = [
    (StringCheckGrader, {"type": "string_check", "operation": "eq", **TEXT}),
    (TextSimilarityGrader, {"type": "text_similarity", "evaluation_metric": "rouge_l", **TEXT}),
    (PythonGrader, {"type": "python", "source": "def grade(sample, item):\n    return 1.0"}),
]
