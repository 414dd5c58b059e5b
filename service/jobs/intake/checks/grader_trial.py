"""Tries a job's grader on some rows before the job is queued, to find one that fails or is constant.

The completions are made up. No model is loaded and no server gets a request.
"""

import re
import threading
import time
from collections.abc import Iterator, Sequence

from grpo_engine.contract.records import GradeError, Sample, Score
from grpo_engine.graders import Grader, make_sample
from grpo_engine.graders import formula as formulas
from grpo_engine.graders.base import GraderBase, row_value
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.graders.registry import LeafGrader
from grpo_engine.graders.rules.endpoint import EnvironmentReward
from grpo_engine.graders.rules.multi import Multi
from grpo_engine.graders.rules.process import Process
from grpo_engine.graders.rules.reward_model import RewardModel
from grpo_engine.graders.template import uses_sample
from service.jobs.intake.report import Report
from service.jobs.model.dataset import Row
from service.jobs.model.methods import leaves

TRIAL_COMPLETIONS = ("", "The answer is 42.", '{"answer": 42}')
DEADLINE_SECONDS = 5.0
"""Time limit for one completion."""
TRIAL_SECONDS = 20.0
"""Time limit for all completions; later scores are ignored."""
RAISED = "python_grader_runtime_error"
OUTPUT_FIELDS = ("sample.output_json", "sample.output_tools")
"""Fields that made-up completions lack."""
MISSING_FIELD_ERRORS = {"sample_parse_error", "invalid_variable_error"}
"""Errors of templates whose fields a completion lacks."""
ALWAYS_FAILS = re.compile(
    r"(NameError|ImportError|ModuleNotFoundError|KeyError)\b|(TypeError: )?grade\(\) must return"
)
"""Errors of a broken grader: a missing name, package or row field, or a reward that is not a number."""
MAX_TRIALS = 8
"""Maximum number of trials at the same time that need a process, which may take 2 GiB."""
SLOT_SECONDS = 5.0
"""Longest wait for one of them to end. After it, the grader is not tried."""
MAX_ROW_VALUES = 4
MAX_VALUE_CHARACTERS = 2000
_slots = threading.BoundedSemaphore(MAX_TRIALS)


def try_grader(report: Report, grader: Grader, rows: Sequence[Row], where: str) -> None:
    """Refuses a grader that fails on trial completions; warns if it scores none, or all of them the same.

    Rules that need a server, a model or an environment are not tried. Errors that only workers can judge are
    ignored.
    """
    if not all(_runs_here(rule) for _, rule in leaves(where, grader)):
        return
    try:
        scored = _scored_in_process if grader.execution == "process" else _scored_here
        scores = scored(grader, rows)
    except _Broken as broken:
        report.problems.add(where, str(broken), code="invalid_grader")
        return
    rewards = {score.reward for score in scores}
    errors = [error for score in scores for error in score.errors.values()]
    raised = [error for error in errors if error.code == RAISED]
    if rewards == {None}:
        reason = errors[0].message if errors else "no reason"
        shown = f"could score no trial completion: {reason}"
        if _is_broken(errors):
            report.problems.add(where, shown, code="invalid_grader")
        elif not (_needs_certain_output(grader) and {error.code for error in errors} <= MISSING_FIELD_ERRORS):
            report.warn("grader_unscorable", f"The grader {shown}")
    elif raised:
        last_line = raised[0].message.strip().rpartition("\n")[2]
        message = f"The grader raised on {len(raised)} of {len(scores)} trial completions: {last_line}"
        consequence = "Such completions are not scored; the job fails if there are too many."
        report.warn("grader_raises", f"{message}. {consequence}")
    elif len(rewards) == 1 and not _needs_certain_output(grader):
        message = f"The grader gave every trial completion the reward {rewards.pop():g}"
        report.warn("grader_constant", f"{message}: if it does so in training, no group has signal.")


class _Broken(Exception):
    """The grader raised; the message names the row."""


def _is_broken(errors: Sequence[GradeError]) -> bool:
    """Whether no completion can ever be scored: always the same error, independent of the completion."""
    last_lines = {error.message.strip().rpartition("\n")[2] for error in errors}
    return (
        all(error.code == RAISED for error in errors)
        and len(last_lines) == 1
        and ALWAYS_FAILS.match(last_lines.pop()) is not None
    )


def _runs_here(rule: GraderBase) -> bool:
    return rule.execution != "thread" and not isinstance(rule, RewardModel | EnvironmentReward)


def _scored_here(grader: Grader, rows: Sequence[Row]) -> list[Score]:
    """Scores of the trial completions, none if they take too long. Raises _Broken."""
    end = time.monotonic() + TRIAL_SECONDS
    scores: list[Score] = []
    for row in rows:
        try:
            for sample in _samples(grader, row):
                if time.monotonic() > end:
                    return []
                scores.append(grader.grade(sample, row.item))
        except (ValueError, TypeError, ArithmeticError, LookupError, RecursionError) as error:
            raise _Broken(f"fails on row {row.line}: {error}") from error
    return scores


def _scored_in_process(grader: Grader, rows: Sequence[Row]) -> list[Score]:
    """Scores from a grading process, without those whose errors are caused by this machine.

    No scores if too many trials run.
    """
    if not _slots.acquire(timeout=SLOT_SECONDS):
        return []
    end = time.monotonic() + TRIAL_SECONDS
    scores: list[Score] = []
    try:
        with Grading(grader, processes=1, deadline_seconds=DEADLINE_SECONDS) as grading:
            futures = [grading.submit(sample, row.item) for row in rows for sample in _samples(grader, row)]
            for future in futures:
                try:
                    scores.append(future.result(max(0.0, end - time.monotonic())))
                except TimeoutError:
                    break
    finally:
        _slots.release()
    return [score for score in scores if not any(map(_is_of_this_machine, score.errors.values()))]


def _is_of_this_machine(error: GradeError) -> bool:
    """Whether this machine lacks a sandbox or library, which workers may have."""
    return error.code == "python_grader_server_error" or "grading process" in error.message


def _samples(grader: Grader, row: Row) -> Iterator[Sample]:
    """Completions to try: short texts, and right answers made from the grader's references for this row."""
    texts = list(TRIAL_COMPLETIONS)
    for part in _parts(grader):
        for template in part.templates().values():
            answer = row_value(template, row.item)
            tag = getattr(part, "tag", None) or "answer"
            texts += [] if answer is None else [answer, f"<{tag}>{answer}</{tag}>"]
        if part.type in ("python", "reasoning_gym"):
            tag = getattr(part, "tag", None)
            texts += [f"<{tag}>{value}</{tag}>" if tag else value for value in _values(row)]
    for text in dict.fromkeys(texts):
        yield make_sample(text, num_tokens=max(1, len(text) // 4))


def _values(row: Row) -> list[str]:
    """Short texts and numbers of the row, which a python grader may compare with."""
    found = [str(value) for value in row.item.values() if isinstance(value, str | int | float)]
    return [text for text in found if len(text) <= MAX_VALUE_CHARACTERS][:MAX_ROW_VALUES]


def _parts(grader: Grader) -> list[LeafGrader]:
    """The rules that the reward depends on; for a process grader, the rule for its steps."""
    if not isinstance(grader, Multi):
        return [grader.grader if isinstance(grader, Process) else grader]
    variables = formulas.parse(grader.calculate_output).variables
    return [rule for key, part in grader.graders.items() if key in variables for rule in _parts(part)]


def _needs_certain_output(grader: Grader) -> bool:
    """Whether it checks lengths, formats or fields, so that no right completion can be made up."""
    return any(
        part.type in ("length", "code_tests")
        or (part.type == "format" and uses_sample(part.input))
        or any(field in template for template in part.templates().values() for field in OUTPUT_FIELDS)
        for part in _parts(grader)
    )
