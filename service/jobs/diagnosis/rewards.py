"""Rules about the reward: errors, failed sessions, cut completions, length, the parts of a grader.

Boundary: pure rules over a run. Thresholds that a guard has too are the guard's.
"""

from grpo_engine.config.guards import DEFAULT_THRESHOLDS
from service.jobs.diagnosis.changes import READ_CUT_TEXT, more_tokens
from service.jobs.diagnosis.failures import FAILED_CALLS, error_lines, slow_or_wrong_grader
from service.jobs.diagnosis.findings import Change, Compared, DiagnosisFinding, finding, number
from service.jobs.diagnosis.held_out import MIN_ROWS, evaluations, is_good, not_held_out
from service.jobs.diagnosis.run import Run
from service.jobs.diagnosis.stability import reward_fell
from service.jobs.diagnosis.windows import BLOCK_STEPS, MIN_STEPS, Span, above

FAILED_SESSIONS = 0.1
"""Share of an environment's sessions that may fail."""
SHOWN_TOOLS = 3
CORRELATION = "completions/reward_length_correlation"
LENGTH = "completions/mean_length"
LONGER = 1.5
"""Growth of the completions' length that a change of prompts does not explain."""
GRADED = 0.9
"""Rewards are graded if their variance is below this share of that of zeros and ones."""
SAME_ANSWER = 0.9
"""Share of the held-out completions that may be equal; if their mean reward is as high, they are right."""
MOST = 0.75
"""Share of the blocks of steps in which reward and length must correlate positively."""


def grader_errors(run: Run) -> DiagnosisFinding | None:
    """A part of the grader fails on many completions."""
    limit = DEFAULT_THRESHOLDS["grader_errors"]
    spans = [span for name in _parts(run, "error_rate") if (span := run.failing(name, limit))]
    if not spans:
        return None
    worst = max(spans, key=lambda span: span.mean)
    cause = "Graders cannot score many of the completions; unscored completions are left out of the training."
    advice = "Read the rollouts with grader errors and fix the grader."
    evidence = [*(f"{span} (limit {limit:g})" for span in spans), *error_lines(run)]
    change = slow_or_wrong_grader(run)
    return finding("grader_errors", cause, evidence, advice, change, compared=worst.against(limit))


def same_answer(run: Run) -> DiagnosisFinding | None:
    """The model gives nearly all held-out rows the same answer, and it is often wrong."""
    known, shares = evaluations(run), run.series("eval/most_frequent_answer")
    if not known or not shares or known[-1].rows < MIN_ROWS:
        return None
    last, (step, share) = known[-1], shares[-1]
    if share < SAME_ANSWER or last.reward >= SAME_ANSWER:
        return None
    answer = f"the same answer, {run.frequent_answer}" if run.frequent_answer else "the same answer"
    cause = f"The model gives {share:.0%} of the held-out rows {answer}"
    if last.reward > known[0].reward:
        cause += f", so its held-out reward of {number(last.reward)} does not show that it can do the task"
    cause += "."
    advice = (
        "Read the held-out rollouts. A lower learning rate or a higher beta or entropy_coef keeps answers "
        "different; if the model cannot do the task yet, train supervised on right answers first."
    )
    change: Change = {"field": "training_file"}
    if not_held_out(run):
        advice, change = "Read the held-out rollouts: they show what the grader pays for.", {}
    elif reward_fell(run):  # the updates broke the policy, so that it answers every prompt alike
        advice = "Read the held-out rollouts, then lower the learning rate as the other finding suggests."
        change = {}
    compared = [
        Compared(label="rows with the same answer", value=share, step=step),
        Compared(label="held-out reward", value=last.reward, step=last.step),
    ]
    evidence = [f"step {step}: most frequent held-out answer {share:.0%} of {last.rows} rows"]
    return finding("same_answer", cause, evidence, advice, change, compared=compared)


def failed_sessions(run: Run) -> DiagnosisFinding | None:
    """Many sessions of an environment fail."""
    limit, (before, after) = FAILED_SESSIONS, ("environments/", "/failure_rate")
    names = {name for row in run.metrics for name in row if name.startswith(before) and name.endswith(after)}
    spans = [span for name in sorted(names) if (span := run.failing(name, limit))]
    if not spans:
        return None
    worst = max(spans, key=lambda span: span.mean)
    name = worst.name.removeprefix(before).removesuffix(after)
    cause = (
        f"{worst.mean:.0%} of the sessions of environment {name} fail; their completions are left out of the "
        "training."
    )
    advice = "Fix the server. If it is slow, raise timeout_seconds; if it is full, lower concurrency."
    reasons = [f"{count} × {each}, {newest}" for each, (count, newest) in run.groups.failed_sessions.items()]
    evidence = [*(f"{span} (limit {limit:g})" for span in spans), *reasons]
    share = Compared(label=f"failed sessions, {worst.place}", value=worst.mean, step=worst.last)
    change = {"field": f"method.{run.kind}.environments.{name}"}
    compared = [share, Compared(label="limit", value=limit)]
    return finding("failed_sessions", cause, evidence, advice, change, compared=compared)


def failed_calls(run: Run) -> DiagnosisFinding | None:
    """Many calls of tools fail."""
    share = run.failing("tools/error_rate", FAILED_CALLS)
    if share is None:
        return None
    cause = f"{share.mean:.0%} of the tool calls fail; the model reads errors instead of answers."
    advice = "Read the newest errors. Fix the tool's server, or show the model how to call it."
    newest = [f"{count} × {name}, {answer}" for name, (count, answer) in run.groups.failed_calls.items()]
    evidence = [f"{share} (limit {FAILED_CALLS:g})", *newest[:SHOWN_TOOLS]]
    change = {"field": f"method.{run.kind}.tools"}
    return finding("failed_calls", cause, evidence, advice, change, compared=share.against(FAILED_CALLS))


def truncation(run: Run) -> DiagnosisFinding | None:
    """Many completions end at the limit."""
    limit = DEFAULT_THRESHOLDS["truncation"]
    share = run.above("completions/clipped_ratio", limit)
    if share is None:
        return None
    turns = (" or max_turns", " or turns") if run.has_turns else ("", "")
    where = f"at max_completion_tokens{turns[0]} ({share.mean:.0%} in {share.place})"
    cause = f"Many completions are cut {where}: an answer after the cut is lost."
    leave_out = "leave cut completions out of the loss (mask_truncated_completions)"
    advice = f"Allow more tokens{turns[1]}, or {leave_out}."
    if max((reward for _, reward in run.series("reward")), default=0.0) <= 0:
        cause += " No completion got a reward, so nothing was learned."
        advice = READ_CUT_TEXT
    evidence = [f"{share} (limit {limit:g})"]
    return finding("truncation", cause, evidence, advice, more_tokens(run), compared=share.against(limit))


def length_hacking(run: Run) -> DiagnosisFinding | None:
    """Longer completions earned more, and completions have become longer.

    All-or-nothing rewards never lead to this finding: they correlate just as much with length if right
    answers are long. The finding stays while completions are long, because then length no longer correlates
    with the reward.
    """
    first = run.span(LENGTH, 1, 1)  # more steps would include much of a fast growth
    paid = _paid_block(run)
    late = first and _longer(run, first)
    if first is None or late is None or paid is None or not _is_graded(run):
        return None
    rewards = [run.span("reward", each.first, each.last) for each in (first, late)]
    limit = DEFAULT_THRESHOLDS["reward_length"]
    evidence = [f"{paid} (limit {limit:g})", *(str(each) for each in (first, late, *rewards) if each)]
    before, after = (number(each.mean) if each else "?" for each in rewards)
    cause = (
        f"The reward grows with length: completions grew from {number(first.mean)} to {number(late.mean)} "
        f"tokens, the reward from {before} to {after} (correlation {number(paid.mean)} in {paid.place})."
    )
    advice = (
        "Read the longest rollouts, then take length out of the grader. An eval_grader that ignores length "
        "shows whether the answers improve."
    )
    change = {"field": f"method.{run.kind}.grader"}
    compared = [first.compared, late.compared]
    return finding("length_hacking", cause, evidence, advice, change, compared=compared)


def _paid_block(run: Run) -> Span | None:
    """The block of steps in which reward and length correlate most, if that is enough.

    One block is enough, because completions that have reached their limit no longer differ in length.
    """
    blocks = [run.span(CORRELATION, end - BLOCK_STEPS + 1, end) for end in run.ends]
    most = max((block for block in blocks if block), key=lambda block: block.mean, default=None)
    return most if most and most.mean >= DEFAULT_THRESHOLDS["reward_length"] else None


def _is_graded(run: Run) -> bool:
    """Whether rewards have other values than 0 and 1, whose variance is mean × (1 − mean)."""
    means = dict(run.series("reward"))
    steps = [(means[step], spread) for step, spread in run.series("reward_std") if step in means]
    variance = sum(spread**2 for _, spread in steps)
    return variance < GRADED * sum(mean * (1 - mean) for mean, _ in steps) or any(
        not 0 <= mean <= 1 for mean, _ in steps
    )


def longer_completions(run: Run) -> DiagnosisFinding | None:
    """The reward rises together with the length, which a grader that pays for length explains too.

    Length may grow for good reasons, so this is a question and not an accusation: the metrics of a run whose
    longer answers are better look the same.
    """
    early = run.span(LENGTH, 1, BLOCK_STEPS)
    late = early and _longer(run, early)
    blocks = [run.span(CORRELATION, end - BLOCK_STEPS + 1, end) for end in run.ends]
    means = [block.mean for block in blocks if block]
    num_positive = sum(mean > 0 for mean in means)
    if early is None or late is None or num_positive < MOST * len(means) or not means:
        return None
    if not is_good(run) or length_hacking(run):
        return None
    before, after = (run.span("reward", each.first, each.last) for each in (early, late))
    rose = f" from {number(before.mean)} to {number(after.mean)}" if before and after else ""
    grew = f"Completions grew from {number(early.mean)} to {number(late.mean)} tokens"
    all_or_nothing = "longer ones earn the full reward more often"
    paid = "longer ones earn more: the grader may pay for length" if _is_graded(run) else all_or_nothing
    cause = f"{grew} while the reward rose{rose}, and {paid} (correlation up to {number(max(means))})."
    correlation = f"steps 1–{run.ends[-1]}: {CORRELATION} {min(means):+.2g} to {max(means):+.2g}"
    evidence = [
        str(early),
        str(late),
        f"{correlation}, positive in {num_positive} of {len(means)} blocks of {BLOCK_STEPS} steps",
        *_changes_of_parts(run, early, late),
    ]
    advice = (
        "Read the longest rollouts. If they are padded, fix the grader or penalise long completions "
        "(overlong_buffer_tokens). An eval_grader that ignores length shows whether the answers improve."
    )
    change = {"field": f"method.{run.kind}.grader"}
    compared = [early.compared, late.compared]
    return finding("longer_completions", cause, evidence, advice, change, "info", compared)


def _longer(run: Run, early: Span) -> Span | None:
    """The newest steps whose completions are demonstrably longer than the first ones.

    None if the first ones are empty, as those of sessions that failed.
    """
    if not early.mean:
        return None
    lengths = [(step, value / early.mean) for step, value in run.series(LENGTH)]
    grown = above("length", lengths, LONGER, run.ends)
    return grown and run.span(LENGTH, max(grown.first, BLOCK_STEPS + 1), grown.last)


def _changes_of_parts(run: Run, early: Span, late: Span) -> list[str]:
    """How the mean of each part changed, if the grader has several."""
    names = _parts(run, "mean")
    spans = [
        (run.span(name, early.first, early.last), run.span(name, late.first, late.last)) for name in names
    ]
    return [f"{one}; {other}" for one, other in spans if len(names) > 1 and one and other]


def silent_part(run: Run) -> DiagnosisFinding | None:
    """Parts of the reward that are always the same, so that they have no effect."""
    spreads = {name: [value for _, value in run.series(name)] for name in _parts(run, "std")}
    silent = [name for name, values in spreads.items() if not any(values)]
    if len(run.metrics) < MIN_STEPS or not silent or len(silent) == len(spreads):
        return None
    steps = len(run.metrics)
    names = [name.split("/", 1)[1].removesuffix("/std") for name in silent]
    lines = [f"{name} is 0 in all {steps} steps" for name in silent]
    cause = f"These parts of the grader give every completion the same score: {', '.join(names)}."
    advice = "Test the part on a few completions in the grader bench; fix it or remove it."
    return finding("silent_part", cause, lines, advice, {"field": f"method.{run.kind}.grader"}, "info")


def _parts(run: Run, what: str) -> list[str]:
    """The names of this metric for all parts of the grader."""
    names = {name for row in run.metrics for name in row}
    return sorted(name for name in names if name.startswith("rewards/") and name.endswith(f"/{what}"))
