"""Failed jobs: what each code means for this job, and what would make it run.

Boundary: pure. The codes are the engine's (`grpo_engine/contract/errors.py`) and the worker's `poisoned`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from service.jobs.diagnosis.findings import DiagnosisFinding
from service.jobs.diagnosis.run import Run
from service.jobs.diagnosis.signal import calmer, without_signal
from service.jobs.results.manifest import settings_in

SHOWN_LINES = 8
"""Of the stored evidence; `failure.evidence` has all of it."""
TIMEOUT = "unresponsive_reward_error"
LIMITS = ("max_calls", "max_cost_usd")
Judge = Callable[[Run, DiagnosisFinding], DiagnosisFinding]
"""Adds the field to change, if there is one."""


def failure(run: Run) -> DiagnosisFinding | None:
    """What ended the job; None if it did not fail."""
    if run.failure is None:
        return None
    code = str(run.failure["code"])
    cause, judge = _CAUSES.get(code, ("The engine failed for a reason that has no rule here.", _as_is))
    found = run.finding(code, cause, _evidence(run), str(run.failure.get("hint") or ""), severity="error")
    return judge(run, found)


def _evidence(run: Run) -> list[str]:
    assert run.failure is not None
    lines = [f"at step {run.step} of {run.total_steps}: {run.failure['message']}"]
    stored = dict.fromkeys(str(line) for line in run.failure.get("evidence") or ())
    return [*lines, *list(stored)[:SHOWN_LINES]]


def _as_is(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    """The cause is outside the request: repeat the request once it is fixed."""
    return found.model_copy(update={"patch": {}})


def _at(field: str) -> Judge:
    """Names a field whose value a person must choose; `{kind}` in it is the method's type."""
    return lambda run, found: run.at(found, field.format(kind=run.kind))


def _grader(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    evidence = [*found.evidence, *error_lines(run)]
    found = found.model_copy(update={"evidence": evidence})
    return slow_or_wrong_grader(run, found)


def slow_or_wrong_grader(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    """More time if graders timed out, otherwise the grader itself."""
    counts = {code: count for code, (count, _) in run.groups.errors.items()}
    if counts and max(counts, key=counts.__getitem__) == TIMEOUT:
        seconds = min(3600.0, 2 * run.settings["grader_timeout_seconds"])
        return run.setting(found, "grader_timeout_seconds", seconds)
    return run.at(found, f"method.{run.kind}.grader")


def error_lines(run: Run) -> list[str]:
    """One line for each kind of error in the stored rollouts."""
    return [f"{count} × {code}, {example}" for code, (count, example) in run.groups.errors.items()]


def _no_signal(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    """The same advice as for a running job without signal, as an error."""
    judged = without_signal(run, found)
    return judged.model_copy(update={"severity": found.severity, "cause": judged.cause or found.cause})


def _memory(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    tokens = run.settings.get("max_completion_tokens")
    if tokens and tokens > 1:
        return run.setting(found, "max_completion_tokens", max(1, tokens // 2))
    return run.setting(found, "max_tokens", max(8, run.settings.get("max_tokens", 2048) // 2))


def _limit(run: Run, found: DiagnosisFinding) -> DiagnosisFinding:
    """Twice the limit that was reached, if only one limit is set."""
    limits = list(_limits(settings_in(run.method), ""))
    if len(limits) != 1:
        return run.at(found, f"method.{run.kind}")
    path, value = limits[0]
    return run.changing(found, path, 2 * value)


def _limits(node: Any, path: str) -> Any:
    """Path and value of each limit of calls or cost that is set; none inside lists."""
    for name, value in node.items() if isinstance(node, Mapping) else ():
        place = f"{path}.{name}".removeprefix(".")
        if name in LIMITS and value is not None:
            yield place, value
        yield from _limits(value, place)


_CAUSES: dict[str, tuple[str, Judge]] = {
    "dataset_invalid": ("A row of the dataset cannot be used by this model.", _at("training_file")),
    "config_invalid": (
        "The settings passed the checks, but the model cannot run with them.",
        _at("method.{kind}.hyperparameters"),
    ),
    "model_not_found": ("The base model did not load on the worker.", _at("model")),
    "base_model_changed": ("The base model's files were replaced while the job was not running.", _as_is),
    "grader_contract": ("Too many completions could not be scored by the grader.", _grader),
    "no_signal": ("No group had different rewards, so there was nothing to learn from.", _no_signal),
    "non_finite": ("The loss or its gradient became NaN or infinite: the updates were too large.", calmer),
    "out_of_memory": ("The job does not fit the device, even with the smallest micro-batches.", _memory),
    "disk_full": ("The worker's disk, or the storage, is full.", _as_is),
    "endpoint_failed": ("A server that the job depends on did not respond.", _as_is),
    "spend_limit": ("The job reached its own limit of calls or cost.", _limit),
    "policy_mismatch": ("The sampler did not serve the policy that was being trained.", _as_is),
    "poisoned": ("Three attempts in a row ended before a new checkpoint.", _memory),
}
"""Code → cause, and the function that finds the change."""
