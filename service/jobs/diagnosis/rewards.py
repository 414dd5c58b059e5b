"""Rules about the reward: errors, cut completions, length, the parts of a grader.

Boundary: pure rules over a run. Thresholds that a guard has too are the guard's.
"""

from grpo_engine.config.guards import DEFAULT_THRESHOLDS
from service.jobs.diagnosis.failures import error_lines, slow_or_wrong_grader
from service.jobs.diagnosis.findings import DiagnosisFinding, finding, number
from service.jobs.diagnosis.run import MIN_STEPS, Run, Span
from service.jobs.diagnosis.signal import more_tokens

LONGER = 1.5
"""Completions that grew by half are no variation of the prompts."""
DOMINATING = 0.95
"""Share of the reward's variation that one part explains …"""
SILENT = 0.1
"""… while every other part explains less than this."""


def unscored(run: Run) -> DiagnosisFinding | None:
    """A part of the grader fails on many completions."""
    names = {name for row in run.metrics for name in row if name.endswith("/error_rate")}
    limit = DEFAULT_THRESHOLDS["grader_errors"]
    spans = [span for name in sorted(names) if (span := run.recent(name)) and span.mean >= limit]
    if not spans or run.failure_code == "grader_contract":
        return None
    lines = [f"{span} (limit {limit:g})" for span in spans]
    cause = "Graders cannot score many of the completions; unscored completions are left out of the training."
    advice = "Inspect them in the rollouts (filter=grader_error) and fix the grader."
    evidence = [*lines, *error_lines(run)]
    return finding("grader_errors", cause, evidence, advice, slow_or_wrong_grader(run))


def cut(run: Run) -> DiagnosisFinding | None:
    """Many completions end at the limit."""
    share, length = run.recent("completions/clipped_ratio"), run.trend("completions/mean_length")
    limit = DEFAULT_THRESHOLDS["truncation"]
    if share is None or share.mean < limit:
        return None
    evidence, more = [f"{share} (limit {limit:g})"], ""
    if length is not None and length.rises:
        evidence, more = [*evidence, *length.evidence], ", and they are still growing"
    cause = f"Many completions are cut at max_completion_tokens{more}: an answer after the cut is lost."
    advice = "Allow more tokens, or leave cut completions out of the loss (mask_truncated_completions)."
    return finding("truncation", cause, evidence, advice, more_tokens(run))


def paid_for_length(run: Run) -> DiagnosisFinding | None:
    """Longer completions earn more, whatever their content."""
    correlation = run.recent("completions/reward_length_correlation")
    length = run.trend("completions/mean_length")
    limit = DEFAULT_THRESHOLDS["reward_length"]
    if correlation is None or correlation.mean < limit:
        return None
    evidence = [f"{correlation} (limit {limit:g})"]
    if length is not None and length.rises and length.late.mean >= LONGER * length.early.mean:
        evidence += length.evidence
    cause = "The reward grows with length, so the policy learns to write longer, not better."
    advice = "Fix the grader, or penalise long completions (overlong_buffer_tokens)."
    change = run.setting("overlong_buffer_tokens", max(1, run.settings["max_completion_tokens"] // 2))
    return finding("length_hacking", cause, evidence, advice, change)


def silent_parts(run: Run) -> DiagnosisFinding | None:
    """A part of the reward that never differs: it decides nothing."""
    means, spreads = _of_parts(run, "mean"), _of_parts(run, "std")
    if len(spreads) < 2 or len(run.metrics) < MIN_STEPS:
        return None
    silent = [part for part in spreads if not any(value for _, value in run.series(f"rewards/{part}/std"))]
    if not silent or len(silent) == len(spreads):
        return None
    lines = [f"{means[part]}, and its std is 0 in all {len(run.metrics)} steps" for part in silent]
    cause = f"These parts of the grader give every completion the same score: {', '.join(silent)}."
    advice = "Test the part on a few completions with …/graders/run; fix it or remove it."
    return finding("silent_part", cause, lines, advice, {"field": f"method.{run.kind}.grader"})


def one_part_rules(run: Run) -> DiagnosisFinding | None:
    """One part of several decides alone."""
    groups, explained = run.groups, run.groups.explained
    if len(explained) < 2:
        return None
    first, *others = sorted(explained, key=explained.__getitem__, reverse=True)
    if explained[first] < DOMINATING or any(explained[other] > SILENT for other in others):
        return None
    lines = [f"r² of the reward and {part}: {number(explained[part])}" for part in (first, *others)]
    lines.append(f"over {groups.num} stored groups of steps {groups.first_step}–{groups.last_step}")
    cause = f"{first} decides the reward alone: the other parts have no influence."
    advice = "Give the others more weight, or normalise each part separately (aggregation: gdpo)."
    return finding("dominating_part", cause, lines, advice, {"field": f"method.{run.kind}.grader"})


def _of_parts(run: Run, what: str) -> dict[str, Span]:
    """Part → its recent mean or std."""
    names = {name for row in run.metrics for name in row if name.startswith("rewards/")}
    parts = sorted(name.split("/", 1)[1].rpartition("/")[0] for name in names if name.endswith(f"/{what}"))
    return {part: span for part in parts if (span := run.recent(f"rewards/{part}/{what}"))}
