"""All rules, and the summary of their findings. Pure: the same run always gets the same diagnosis."""

from collections.abc import Callable
from typing import get_args

from service.jobs.diagnosis.failures import failure
from service.jobs.diagnosis.findings import Diagnosis, DiagnosisFinding, Severity
from service.jobs.diagnosis.rewards import cut, one_part_rules, paid_for_length, silent_parts, unscored
from service.jobs.diagnosis.run import Run
from service.jobs.diagnosis.signal import few_signals, flat_reward, not_held_out, not_shown, too_few_steps
from service.jobs.diagnosis.stability import collapsed, far_away, too_fast
from service.jobs.model.states import PUBLIC

Rule = Callable[[Run], DiagnosisFinding | None]
ALWAYS: tuple[Rule, ...] = (failure, not_shown, too_few_steps)
OF_REINFORCEMENT: tuple[Rule, ...] = (
    *(few_signals, unscored, not_held_out, far_away, collapsed, too_fast),
    *(cut, paid_for_length, silent_parts, one_part_rules, flat_reward),
)


def diagnose(run: Run) -> Diagnosis:
    """The findings of all rules, the worst first."""
    rules = ALWAYS + (OF_REINFORCEMENT if run.kind == "reinforcement" else ())
    found = [finding for rule in rules if (finding := rule(run)) is not None]
    found.sort(key=lambda finding: get_args(Severity).index(finding.severity))
    return Diagnosis(
        job_id=run.job_id,
        status=PUBLIC[run.state].value,
        step=run.step,
        summary=_summary(run, found),
        findings=found,
    )


def _summary(run: Run, found: list[DiagnosisFinding]) -> str:
    if found:
        more = f" ({len(found) - 1} more below)" if len(found) > 1 else ""
        return found[0].cause + more
    if not run.step:
        return "No step is done yet."
    return f"No problems found in {run.step} of {run.total_steps} steps."
