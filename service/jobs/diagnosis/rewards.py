"""Rules about the reward: errors, cut completions, length, the parts of a grader.

Boundary: pure rules over a run. Thresholds that a guard has too are the guard's.
"""

from grpo_engine.config.guards import DEFAULT_THRESHOLDS
from service.jobs.diagnosis.changes import more_tokens
from service.jobs.diagnosis.failures import error_lines, slow_or_wrong_grader
from service.jobs.diagnosis.findings import Compared, DiagnosisFinding, finding
from service.jobs.diagnosis.run import Run
from service.jobs.diagnosis.windows import BLOCK_STEPS, MIN_STEPS, above, settled

CORRELATION = "completions/reward_length_correlation"
LONGER = 1.5
"""Growth of the completions' length that a change of prompts does not explain."""


def unscored(run: Run) -> DiagnosisFinding | None:
    """A part of the grader fails on many completions."""
    limit = DEFAULT_THRESHOLDS["grader_errors"]
    spans = [span for name in _parts(run, "error_rate") if (span := run.above(name, limit))]
    if not spans:
        return None
    worst = max(spans, key=lambda span: span.mean)
    cause = "Graders cannot score many of the completions; unscored completions are left out of the training."
    advice = "Inspect them in the rollouts (filter=grader_error) and fix the grader."
    evidence = [*(f"{span} (limit {limit:g})" for span in spans), *error_lines(run)]
    compared = [worst.compared, Compared(label="limit", value=limit)]
    change = slow_or_wrong_grader(run)
    return finding("grader_errors", cause, evidence, advice, change, compared=compared)


def cut(run: Run) -> DiagnosisFinding | None:
    """Many completions end at the limit."""
    limit = DEFAULT_THRESHOLDS["truncation"]
    share = run.above("completions/clipped_ratio", limit)
    if share is None:
        return None
    cause = "Many completions are cut at max_completion_tokens: an answer after the cut is lost."
    advice = "Allow more tokens, or leave cut completions out of the loss (mask_truncated_completions)."
    compared = [share.compared, Compared(label="limit", value=limit)]
    evidence = [f"{share} (limit {limit:g})"]
    return finding("truncation", cause, evidence, advice, more_tokens(run), compared=compared)


def paid_for_length(run: Run) -> DiagnosisFinding | None:
    """Longer completions earned more, and completions have become longer.

    The finding stays while completions are long, because then length no longer correlates with the reward.
    """
    limit, lengths = DEFAULT_THRESHOLDS["reward_length"], run.series("completions/mean_length")
    early = run.span("completions/mean_length", 1, BLOCK_STEPS)

    def is_paid(end: int) -> bool | None:
        block = run.span(CORRELATION, end - BLOCK_STEPS + 1, end)
        return (block is not None and block.mean >= limit) or None

    end = settled(is_paid, run.ends)
    if end is None or early is None:
        return None
    grown = above("length", [(step, value / early.mean) for step, value in lengths], LONGER, run.ends)
    late = grown and run.span("completions/mean_length", grown.first, grown.last)
    if late is None:
        return None
    paid = run.span(CORRELATION, end - MIN_STEPS + 1, end)
    evidence = [f"{paid} (limit {limit:g})", str(early), str(late)]
    cause = "The reward grows with length, and the policy writes longer."
    advice = "Fix the grader, or penalise long completions (overlong_buffer_tokens)."
    change = run.setting("overlong_buffer_tokens", max(1, run.settings["max_completion_tokens"] // 2))
    compared = [early.compared, late.compared]
    return finding("length_hacking", cause, evidence, advice, change, compared=compared)


def silent_parts(run: Run) -> DiagnosisFinding | None:
    """Parts of the reward that are always the same, so that they have no effect."""
    spreads = {name: [value for _, value in run.series(name)] for name in _parts(run, "std")}
    silent = [name for name, values in spreads.items() if not any(values)]
    if len(run.metrics) < MIN_STEPS or not silent or len(silent) == len(spreads):
        return None
    steps = len(run.metrics)
    names = [name.split("/", 1)[1].removesuffix("/std") for name in silent]
    lines = [f"{name} is 0 in all {steps} steps" for name in silent]
    cause = f"These parts of the grader give every completion the same score: {', '.join(names)}."
    advice = "Test the part on a few completions with …/graders/run; fix it or remove it."
    return finding("silent_part", cause, lines, advice, {"field": f"method.{run.kind}.grader"}, "info")


def _parts(run: Run, what: str) -> list[str]:
    """The names of this metric for all parts of the grader."""
    names = {name for row in run.metrics for name in row}
    return sorted(name for name in names if name.startswith("rewards/") and name.endswith(f"/{what}"))
