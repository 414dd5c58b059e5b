"""Rules about the size of the policy's updates: KL, clipping, and a policy that broke.

No rule uses spikes of the gradient: clipping bounds their effect, and good runs with few prompts per step
have many. Boundary: pure rules over a run. A threshold that a guard also has is the guard's.
"""

from grpo_engine.config.guards import DEFAULT_THRESHOLDS, START_STEPS
from service.jobs.diagnosis.changes import HIGHEST_RATE, closer_to_reference, lower_learning_rate
from service.jobs.diagnosis.findings import DiagnosisFinding, finding, number
from service.jobs.diagnosis.held_out import MIN_ROWS, best_checkpoint, best_of, evidence_of, held_out_fall
from service.jobs.diagnosis.run import Run
from service.jobs.diagnosis.training import training_fall
from service.jobs.diagnosis.windows import BLOCK_STEPS, Points, above

MAX_CLIPPED = 0.3
"""Share of tokens outside the clip range. A few percent is usual; these tokens get no gradient."""
LOST = 0.1
"""A policy is broken if less than this share of its best reward is left."""


def reward_fell(run: Run) -> DiagnosisFinding | None:
    """The held-out reward or, without enough held-out rows, the training reward has fallen from its best."""
    training, known = training_fall(run), held_out_fall(run)
    if known and known[-1].rows >= MIN_ROWS:
        which, best, last = "held-out", best_of(known), known[-1]
        compared, evidence = [best.compared, last.compared], evidence_of([best, last])
        ends = [f"{number(one.reward)} (step {one.step})" for one in (best, last)]
    elif training:
        which, compared = "training", [one.compared for one in training]
        evidence = [str(one) for one in training]
        ends = [f"{number(one.mean)} ({one.place})" for one in training]
    else:
        return None
    before, after = (one.value for one in compared)
    sign = (_exploded(run, 1) or _certain(run, 1)) if after <= LOST * before else None
    why = f"the updates broke the policy ({sign})" if sign else "the policy became worse"
    cause = f"The {which} reward fell from {ends[0]} to {ends[1]}: {why}."
    advice = f"Lower the learning rate.{best_checkpoint(run)}"
    return finding("reward_fell", cause, evidence, advice, lower_learning_rate(run), compared=compared)


def broken_policy(run: Run) -> DiagnosisFinding | None:
    """The reward rose and then fell to almost nothing, and KL or entropy show that the policy broke."""
    fall = training_fall(run)
    if fall is None:
        return None
    best, late = fall
    sign = _exploded(run, best.first) or _certain(run, best.first)
    if best.first <= BLOCK_STEPS or late.mean > LOST * best.mean or sign is None:
        return None
    cause = (
        f"The learning rate is too high: the reward rose to {number(best.mean)} and fell to "
        f"{number(late.mean)}, because the updates broke the policy ({sign})."
    )
    evidence = [str(best), str(late), sign]
    advice = f"Lower the learning rate.{best_checkpoint(run)}"
    compared = [best.compared, late.compared]
    change = lower_learning_rate(run)
    return finding("learning_rate_too_high", cause, evidence, advice, change, compared=compared)


def _exploded(run: Run, first: int) -> str | None:
    """The largest distance from the reference since step `first`, if it is above the guard's limit."""
    limit = DEFAULT_THRESHOLDS["kl"]
    nats, step = max(((nats, step) for step, nats in _distances(run) if step >= first), default=(0.0, 0))
    far = f"step {step}: {number(nats)} nats per completion away from the reference, limit {limit:g}"
    return far if nats >= limit else None


def _certain(run: Run, first: int) -> str | None:
    """The lowest entropy since step `first`, if it is below the guard's share of that of the first steps."""
    entropy = run.series("entropy")
    start = [value for _, value in entropy[:START_STEPS]]
    low, step = min(((value, step) for step, value in entropy if step >= first), default=(0.0, 0))
    if not step or low > DEFAULT_THRESHOLDS["entropy"] * sum(start) / len(start):
        return None
    return f"step {step}: entropy {number(low)}, {number(sum(start) / len(start))} in the first steps"


def _distances(run: Run) -> Points:
    """The KL of each step's mean completion, in nats."""
    lengths = dict(run.series("completions/mean_length"))
    return [(step, kl * lengths[step]) for step, kl in run.series("kl") if step in lengths]


def kl_explosion(run: Run) -> DiagnosisFinding | None:
    """The KL of a completion is above the guard's limit. A high rate explains it, otherwise beta helps."""
    limit = DEFAULT_THRESHOLDS["kl"]
    far = above("kl × completions/mean_length", _distances(run), limit, run.ends)
    if far is None:
        return None
    evidence = [f"{far} nats (limit {limit:g})"]
    compared = far.against(limit)
    rate = run.settings.get("learning_rate", 0.0)
    if rate > HIGHEST_RATE:
        cause = (
            f"The learning rate of {rate:g} is too high: the updates moved the policy far from the reference."
        )
        advice = f"Lower the learning rate; adapters rarely tolerate more than {HIGHEST_RATE:g}."
        change = lower_learning_rate(run)
        return finding("learning_rate_too_high", cause, evidence, advice, change, compared=compared)
    cause = "The policy is far from the reference: it may exploit the grader and lose abilities."
    advice = "Raise beta, or lower the learning rate."
    return finding("kl_explosion", cause, evidence, advice, closer_to_reference(run), compared=compared)


def clipped_updates(run: Run) -> DiagnosisFinding | None:
    """Updates that the clip range cuts off."""
    clipped = run.above("clip_ratio/region_mean", MAX_CLIPPED)
    if clipped is None:
        return None
    cause = "The learning rate is too high: updates overshoot."
    evidence = [f"{clipped} (limit {MAX_CLIPPED:g})"]
    compared = clipped.against(MAX_CLIPPED)
    change = lower_learning_rate(run)
    return finding(
        "learning_rate_too_high", cause, evidence, "Lower the learning rate.", change, compared=compared
    )
