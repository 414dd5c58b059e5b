"""A job's grader tried on some rows before anything is queued: does it break, is it mute, is it constant?

Boundary: grades made-up completions; no model, no storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from grpo_engine.graders import Grader, make_sample
from grpo_engine.graders import formula as formulas
from grpo_engine.graders.base import row_value
from grpo_engine.graders.multi import Multi
from grpo_engine.graders.registry import SingleGrader
from grpo_engine.graders.template import uses_sample
from grpo_engine.records import Sample, Score
from service.jobs.dataset import Problems, Row
from service.jobs.method_checks import Warn

TRIAL_COMPLETIONS = ("", "The answer is 42.", '{"answer": 42}')
WHERE = "method.reinforcement.grader"


def try_grader(grader: Grader, rows: Sequence[Row], problems: Problems, warn: Warn) -> None:
    """A grader that breaks on trial completions is refused, a mute or constant one is told."""
    scores: list[Score] = []
    for row in rows:
        try:
            scores += [grader.grade(sample, row.item) for sample in _samples(grader, row)]
        except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
            problems.add(WHERE, f"fails on row {row.line}: {error}", code="invalid_grader")
            return
    rewards = {score.reward for score in scores}
    if rewards == {None}:
        errors = [error.message for score in scores for error in score.errors.values()]
        warn("grader_unscorable", f"The grader could score no trial completion: {[*errors, 'no reason'][0]}")
    elif len(rewards) == 1 and not _wants_a_shape(grader):
        message = f"The grader gave every trial completion the reward {rewards.pop():g}"
        warn("grader_constant", f"{message}: if it always does, no group can have signal.")


def _samples(grader: Grader, row: Row) -> Iterator[Sample]:
    """Completions that say little, and right ones: what the grader's own references are for this row."""
    texts = list(TRIAL_COMPLETIONS)
    for part in _parts(grader):
        for template in part.templates().values():
            answer = row_value(template, row.item)
            tag = getattr(part, "tag", None) or "answer"
            texts += [] if answer is None else [answer, f"<{tag}>{answer}</{tag}>"]
    for text in dict.fromkeys(texts):
        yield make_sample(text, num_tokens=max(1, len(text) // 4))


def _parts(grader: Grader) -> list[SingleGrader]:
    """The rules that the reward depends on."""
    if not isinstance(grader, Multi):
        return [grader]
    variables = formulas.parse(grader.calculate_output).variables
    return [part for key, part in grader.graders.items() if key in variables]


def _wants_a_shape(grader: Grader) -> bool:
    """Whether it looks at lengths, formats or fields, of which no right completion can be made up here."""
    return any(
        part.type == "length"
        or (part.type == "format" and uses_sample(part.input))
        or any("sample.output_json" in template for template in part.templates().values())
        for part in _parts(grader)
    )
