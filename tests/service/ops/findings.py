"""The problems among a doctor's findings."""

from collections.abc import Iterable

from service.ops.doctor.findings import Finding, Level


def bad(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level is not Level.OK]


def only(findings: Iterable[Finding]) -> Finding:
    """The only problem, which has advice."""
    (finding,) = bad(findings)
    assert finding.advice.endswith((".", "too."))
    return finding
