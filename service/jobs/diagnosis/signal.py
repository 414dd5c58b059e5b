"""Rules about the learning signal: groups whose completions all earn the same.

Boundary: pure rules over a run. Thresholds that a guard has too are the guard's.
"""

from collections.abc import Sequence
from typing import NamedTuple

from grpo_engine.config.guards import DEFAULT_THRESHOLDS, START_STEPS
from service.jobs.diagnosis.changes import READ_CUT_TEXT, lower_learning_rate, more_tokens
from service.jobs.diagnosis.findings import Change, Compared, DiagnosisFinding, Severity, finding, number
from service.jobs.diagnosis.held_out import (
    Evaluation,
    evaluations,
    evidence_of,
    greedy_or_sampled,
    held_out_gain,
    is_good,
)
from service.jobs.diagnosis.run import Run
from service.jobs.diagnosis.stability import kl_explosion
from service.jobs.diagnosis.training import gain_at
from service.jobs.diagnosis.windows import BLOCK_STEPS, MIN_STEPS, above

MAJORITY = 0.6
"""A cause is named if it explains more than this share of the groups without signal."""
MAX_GROUP_SIZE = 64
"""Larger groups are not suggested: for a prompt that the model cannot solve, they mostly add failures."""
ROUNDS = 3
"""Rounds of dynamic sampling in the DAPO recipe."""
HIGHER_CLIP = 0.28
"""DAPO's epsilon_high, which keeps rare tokens alive."""
RATIO_LOSSES = frozenset({"grpo", "dapo", "dr_grpo", "bnpo"})
"""Losses whose upper clip range bounds the ratio of a token."""
SIGNAL = "frac_reward_zero_std"
SIGNAL_LIMIT = DEFAULT_THRESHOLDS["no_signal"]
MIN_GROUPS = 10
"""Fewest groups that are judged in a run too short for trends."""
LUCKY = 0.05
"""Share of the groups in which a model that cannot do the task may earn a reward by chance."""
MUCH = 0.5
"""A gain is large above this share of the first rewards' standard deviation (Cohen's "medium effect")."""
SOLVED = 0.95
"""Mean reward of 0 to 1 from which almost nothing is left to learn."""
ROUNDING = 0.005
"""Room for a variance of few rows, which is divided by one row less."""


class Reason(NamedTuple):
    """Why groups have no signal."""

    cause: str
    """Cause of most groups without signal; empty if no single one explains most of them."""
    advice: str
    change: Change
    evidence: list[str]


def already_solved(run: Run) -> DiagnosisFinding | None:
    """The reward was at its maximum before training, so more steps cannot raise it."""
    known = evaluations(run)
    start = _first_held_out(run, known) if known else _first_training(run)
    if start is None or held_out_gain(run):
        return None
    where, level, evidence = start
    cause = f"The model already solved this {where}, so training can hardly improve it."
    advice = (
        "Use harder rows, or a reward that also tells good answers from better ones. More steps do not help."
    )
    compared = [level, Compared(label="highest reward", value=1.0)]
    change = {"field": "training_file"}
    return finding("already_solved", cause, evidence, advice, change, compared=compared)


Level = tuple[str, Compared, list[str]]
"""Where the first reward was measured, in words; the reward; its evidence."""


def _first_held_out(run: Run, known: Sequence[Evaluation]) -> Level | None:
    """The held-out reward before training, if it was at its maximum."""
    first = known[0]
    if not _is_solved(run, first.reward, first.spread):
        return None
    how = f"held-out reward {number(first.reward)} of 1, {greedy_or_sampled(run)}"
    return f"before training ({how})", first.compared, evidence_of([first, known[-1]])


def _first_training(run: Run) -> Level | None:
    """The training reward of the first ten steps, if it was at its maximum."""
    first = run.span("reward", 1, BLOCK_STEPS)
    if first is None or first.last < BLOCK_STEPS or not _is_solved(run, first.mean):
        return None
    return f"at the start (training reward {number(first.mean)} of 1)", first.compared, [str(first)]


def _is_solved(run: Run, mean: float, spread: float = 0.0) -> bool:
    """Whether the mean is near 1 and no reward is known to be above 1.

    Rewards from 0 to 1 have at most the variance mean × (1 − mean); a larger `spread` shows a higher one.
    """
    highest = max((reward for _, reward in run.series("reward")), default=0.0)
    return SOLVED <= mean <= 1 >= highest and spread**2 <= mean * (1 - mean) + ROUNDING


def few_signals(run: Run) -> DiagnosisFinding | None:
    """In most groups, all completions earn the same reward."""
    share = run.above(SIGNAL, SIGNAL_LIMIT)
    if share is None:
        return None
    reason = without_signal(run)
    cause = "In most groups all completions earn the same reward; such groups give no signal."
    evidence = [f"{share} (limit {SIGNAL_LIMIT:g})", *reason.evidence]
    compared = share.against(SIGNAL_LIMIT)
    return finding(
        "few_signals", reason.cause or cause, evidence, reason.advice, reason.change, compared=compared
    )


def unrewarded_short_run(run: Run) -> DiagnosisFinding | None:
    """A run that ended too early for `few_signals` earned a reward in at most `LUCKY` of its groups."""
    groups = run.groups
    if not run.is_over or len(run.series("reward")) >= MIN_STEPS or groups.num < MIN_GROUPS:
        return None
    if groups.num - groups.num_wrong > LUCKY * groups.num:
        return None
    reason = _too_hard(run, [groups.text()])
    return finding("few_signals", reason.cause, reason.evidence, reason.advice, reason.change)


def without_signal(run: Run) -> Reason:
    """The reason, from the stored groups, and the change that helps."""
    groups = run.groups
    evidence = [groups.text()] if groups.num else []
    if groups.num_wrong > MAJORITY * groups.num_flat:
        return _too_hard(run, evidence)
    if groups.num_right > MAJORITY * groups.num_flat:
        cause = "Already solved: in almost every group all completions are right. Nothing is left to learn."
        return Reason(cause, "Use harder rows, or stop here.", {"field": "training_file"}, evidence)
    advice = "Replace groups without signal with new prompts, or use a grader with finer scores."
    change: Change = {"field": "training_file"}
    if run.settings.get("dynamic_sampling", ROUNDS) < ROUNDS:
        change = run.setting("dynamic_sampling", ROUNDS)
    return Reason("", advice, change, evidence)


def _too_hard(run: Run, evidence: list[str]) -> Reason:
    cut = run.above("completions/clipped_ratio", DEFAULT_THRESHOLDS["truncation"])
    if cut:
        cause = "In almost every group no completion gets a reward, and most completions are cut."
        return Reason(cause, READ_CUT_TEXT, more_tokens(run), [*evidence, str(cut)])
    if is_good(run):
        wrong = f"In {run.groups.num_wrong} of {run.groups.num} groups no completion gets a reward"
        cause = f"{wrong}; such groups give no signal."
        advice = "More completions per prompt find rare correct ones; easier prompts give more signal."
        return Reason(cause, advice, _larger_group(run), evidence)
    why = "the model cannot do this task yet, or the grader rejects right answers"
    why += f" (for example {run.unrewarded})" if run.unrewarded else ""
    advice = (
        "Test the grader on a right answer. If that earns a reward, start with supervised fine-tuning, use "
        "easier prompts, or reward partial progress."
    )
    if run.groups.num_wrong == run.groups.num:  # larger groups would not find a right one
        cause = f"No completion in the newest {run.groups.num} groups got a reward: {why}."
        return Reason(cause, advice, {"field": f"method.{run.kind}.grader"}, evidence)
    cause = f"In almost every group no completion gets a reward: {why}."
    advice += " More completions per prompt find rare correct ones."
    return Reason(cause, advice, _larger_group(run), evidence)


def _larger_group(run: Run) -> Change:
    size = run.settings.get("group_size", MAX_GROUP_SIZE)
    if size >= MAX_GROUP_SIZE:
        return {"field": "training_file"}
    return run.setting("group_size", min(MAX_GROUP_SIZE, 2 * size))


def entropy_collapse(run: Run) -> DiagnosisFinding | None:
    """Groups have no signal because the policy always writes the same completion, which is not right.

    A run that gained much may have reached the maximum of its grader, which need not be 1: only information.
    """
    start = run.series("entropy")[:START_STEPS]
    mean = sum(value for _, value in start) / len(start) if start else 0.0
    without = few_signals(run)
    if mean <= 0 or without is None or run.groups.num_right > MAJORITY * run.groups.num_flat:
        return None
    times_lower = [(step, mean / max(value, 1e-9)) for step, value in run.series("entropy")]
    limit = DEFAULT_THRESHOLDS["entropy"]
    low = above("entropy", times_lower, 1 / limit, run.ends)
    late = low and run.span("entropy", low.first, low.last)
    if late is None:
        return None
    first = f"steps {start[0][0]}–{start[-1][0]}: entropy {mean:.3g}"
    evidence = [first, f"{late} (limit {limit:g} of the start)", *without.evidence]
    cause = "The entropy has collapsed: the policy repeats itself, and its groups have no signal."
    advice = "Lower the learning rate, or raise the temperature or epsilon_high so that rare tokens can grow."
    compared = [Compared(label="entropy, first steps", value=mean, step=start[-1][0]), late.compared]
    severity: Severity = "info" if is_good(run) and _gained_much(run) else "warning"
    return finding("entropy_collapse", cause, evidence, advice, _keep_exploring(run), severity, compared)


def _keep_exploring(run: Run) -> Change:
    """A lower learning rate, or a wider clip range if the policy has not moved too far."""
    is_ratio = run.settings["loss_type"] in RATIO_LOSSES
    if is_ratio and run.settings["epsilon_high"] < HIGHER_CLIP and not kl_explosion(run):
        return run.setting("epsilon_high", HIGHER_CLIP)
    return lower_learning_rate(run)


def _gained_much(run: Run) -> bool:
    gain = gain_at(run, max(run.ends))
    spread = run.span("reward_std", 1, BLOCK_STEPS)
    return gain is not None and spread is not None and gain.mean > MUCH * spread.mean
