"""The guards' warnings: one finding for all warnings of a guard."""

from collections.abc import Sequence

from service.jobs.diagnosis.findings import DiagnosisFinding, finding
from service.jobs.diagnosis.run import GuardWarning, Run


def guard_findings(run: Run) -> list[DiagnosisFinding]:
    """One finding for each guard that warned, as information only: the rules judge the whole run."""
    warnings: dict[str, list[GuardWarning]] = {}
    for warning in run.guards:
        warnings.setdefault(warning.code, []).append(warning)
    return [_finding(code, each) for code, each in warnings.items()]


def _finding(code: str, warnings: Sequence[GuardWarning]) -> DiagnosisFinding:
    times = "once" if len(warnings) == 1 else f"{len(warnings)} times, last"
    cause = f"The guard {code.removeprefix('guard_')} warned {times} at step {warnings[-1].step}."
    found = finding(code, cause, [warnings[-1].message], "", {}, "info")
    counts = {"count": len(warnings), "first_step": warnings[0].step, "last_step": warnings[-1].step}
    return found.model_copy(update=counts)
