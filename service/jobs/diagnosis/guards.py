"""The guards' warnings: one finding for all warnings of a guard, or part of the finding about the same."""

from collections.abc import Sequence

from service.jobs.diagnosis.findings import DiagnosisFinding, finding
from service.jobs.diagnosis.run import GuardWarning, Run

GUARDS = {
    "kl_explosion": "guard_kl",
    "few_signals": "guard_no_signal",
    "no_signal": "guard_no_signal",
    "entropy_collapse": "guard_entropy",
    "truncation": "guard_truncation",
    "grader_errors": "guard_grader_errors",
    "grader_contract": "guard_grader_errors",
    "length_hacking": "guard_reward_length",
    "reward_flat": "guard_reward_plateau",
}
"""Code of a finding → the guard that warns of the same observation."""


def with_guards(run: Run, found: Sequence[DiagnosisFinding]) -> list[DiagnosisFinding]:
    """The findings, each with the number of warnings of its guard, and one for each other guard."""
    warnings: dict[str, list[GuardWarning]] = {}
    for warning in run.guards:
        warnings.setdefault(warning.code, []).append(warning)
    known = [one.model_copy(update=_counts(warnings.pop(GUARDS.get(one.code, ""), ()))) for one in found]
    return known + [_alone(code, each) for code, each in warnings.items()]


def _counts(warnings: Sequence[GuardWarning]) -> dict[str, int]:
    if not warnings:
        return {}
    return {"count": len(warnings), "first_step": warnings[0].step, "last_step": warnings[-1].step}


def _alone(code: str, warnings: Sequence[GuardWarning]) -> DiagnosisFinding:
    """Only worth knowing: the rules, which see the whole run, do not confirm the warning."""
    times = "once" if len(warnings) == 1 else f"{len(warnings)} times, last"
    cause = f"The guard {code.removeprefix('guard_')} warned {times} at step {warnings[-1].step}."
    found = finding(code, cause, [warnings[-1].message], "", {}, "info")
    return found.model_copy(update=_counts(warnings))
