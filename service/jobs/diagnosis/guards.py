"""The guards' warnings: one finding for all warnings of a guard."""

import re
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
    """The newest warning: its first sentence says what happened, the others what to do."""
    cause, *advice = re.split(r"(?<=\.) (?=[A-Z])", warnings[-1].message, maxsplit=1)
    found = finding(code, cause, [], "".join(advice), {}, "info")
    counts = {"count": len(warnings), "first_step": warnings[0].step, "last_step": warnings[-1].step}
    return found.model_copy(update=counts)
