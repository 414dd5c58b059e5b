"""All rules, their order, and the summary. Pure: the same run always gets the same diagnosis."""

from collections.abc import Callable, Iterable
from typing import get_args

from service.jobs.diagnosis import held_out, rewards, signal, stability, training
from service.jobs.diagnosis.failures import failure
from service.jobs.diagnosis.findings import Diagnosis, DiagnosisFinding, Severity, number
from service.jobs.diagnosis.guards import guard_findings
from service.jobs.diagnosis.held_out import (
    greedy_or_sampled,
    held_out_gain,
    interval,
    is_good,
    level_of_training,
)
from service.jobs.diagnosis.run import Run
from service.jobs.diagnosis.training import rise
from service.jobs.diagnosis.training_rows import few_held_out_rows, few_training_rows
from service.jobs.model.states import PUBLIC

Rule = Callable[[Run], DiagnosisFinding | None]
MAIN: tuple[Rule, ...] = (
    failure,
    rewards.length_hacking,
    held_out.not_held_out,
    stability.broken_policy,
    stability.reward_fell,
    signal.already_solved,
    signal.entropy_collapse,
    stability.clipped_updates,
    stability.kl_explosion,
    rewards.truncation,
    signal.few_signals,
    signal.unrewarded_short_run,
    training.reward_flat,
)
"""Causes come before their effects. Only the first rule that applies makes a finding, because its suggested
change may contradict those of later rules, and would change what they observe."""
UNLESS_GOOD = MAIN[7:]
"""Observations that are worth knowing in a run that improves, and problems in any other."""
QUESTIONS = frozenset({"longer_completions"})
"""Codes of information that explains a rising reward and is listed before other information."""
OF_REINFORCEMENT: tuple[Rule, ...] = (
    rewards.grader_errors,
    rewards.failed_sessions,
    rewards.failed_calls,
    rewards.same_answer,
    held_out.more_rows,
    few_held_out_rows,
    rewards.longer_completions,
    rewards.silent_part,
)


def diagnose(run: Run) -> Diagnosis:
    """The main finding, the independent ones, and what only guards warned about, sorted by severity."""
    found = _first(run) or _applied(run, (training.too_few_steps,))
    if run.kind == "supervised":
        found += _applied(run, (training.loss_still_falls,))
    if run.kind == "reinforcement":
        found += _applied(run, OF_REINFORCEMENT)
        if not found and not is_good(run):
            found = _applied(run, (training.more_steps,))
        if not any(one.code == "not_held_out" for one in found):  # few rows are part of that cause
            found += _applied(run, (few_training_rows,))
        found += guard_findings(run, {one.code for one in found})
    found.sort(key=lambda one: (get_args(Severity).index(one.severity), one.code not in QUESTIONS))
    return Diagnosis(
        job_id=run.job_id,
        status=PUBLIC[run.state].value,
        step=run.step,
        summary=_summary(run, found),
        findings=found,
    )


def _first(run: Run) -> list[DiagnosisFinding]:
    """The main cause, or none."""
    for rule in MAIN if run.kind == "reinforcement" else (failure,):
        found = rule(run)
        if found is not None:
            is_harmless = rule in UNLESS_GOOD and is_good(run)
            return [found.model_copy(update={"severity": "info"}) if is_harmless else found]
    return []


def _applied(run: Run, rules: Iterable[Rule]) -> list[DiagnosisFinding]:
    return [found for rule in rules if (found := rule(run)) is not None]


def _summary(run: Run, found: list[DiagnosisFinding]) -> str:
    good = _good(run)
    if found and (found[0].severity != "info" or not good):
        more = f" ({len(found) - 1} more below)" if len(found) > 1 else ""
        return found[0].cause + more
    if not run.step:
        return "No step is done yet."
    doubts = [one.cause for one in found if one.code in QUESTIONS]
    return (
        " ".join([good, *doubts]) if good else f"No problems found in {run.step} of {run.total_steps} steps."
    )


def _good(run: Run) -> str:
    """Why the run is good, with its numbers; empty if that is not known."""
    if run.kind != "reinforcement":
        return ""
    if last := held_out_gain(run):
        before = number(last.reward - last.difference)
        return (
            f"Held-out reward ({greedy_or_sampled(run)}) rose from {before} to {number(last.reward)} "
            f"(95% CI {interval(last)}) over {last.rows} rows.{level_of_training(run, last)}"
        )
    gain = rise(run)
    if gain is None:
        return ""
    rose = f"Training reward rose from {number(gain.early.mean)} to {number(gain.late.mean)}"
    places = f"({gain.early.place} and {gain.late.place})"
    if not run.evaluation:
        return f"{rose} {places}. No held-out rows measure other prompts."
    unclear = held_out.more_rows(run)
    return f"{rose} {places}.{f' {unclear.cause}' if unclear else ''}"
