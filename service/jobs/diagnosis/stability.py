"""Rules about the size of the policy's updates: KL and clipping.

No rule uses spikes of the gradient: clipping bounds their effect, and good runs with few prompts per step
have many. Boundary: pure rules over a run. A threshold that a guard also has is the guard's.
"""

from grpo_engine.config.guards import DEFAULT_THRESHOLDS
from service.jobs.diagnosis.changes import closer_to_reference, lower_learning_rate
from service.jobs.diagnosis.findings import Compared, DiagnosisFinding, finding
from service.jobs.diagnosis.run import Run
from service.jobs.diagnosis.windows import above

MAX_CLIPPED = 0.3
"""Share of tokens outside the clip range. A few percent is usual; these tokens get no gradient."""


def far_away(run: Run) -> DiagnosisFinding | None:
    """The KL of a completion is larger than the guard's limit."""
    limit, lengths = DEFAULT_THRESHOLDS["kl"], dict(run.series("completions/mean_length"))
    nats = [(step, kl * lengths[step]) for step, kl in run.series("kl") if step in lengths]
    far = above("kl × completions/mean_length", nats, limit, run.ends)
    if far is None:
        return None
    evidence = [f"{far} nats (limit {limit:g})"]
    cause = "The policy is far from the reference: it may exploit the grader and lose abilities."
    advice = "Raise beta, or lower the learning rate."
    compared = [far.compared, Compared(label="limit", value=limit)]
    return finding("kl_explosion", cause, evidence, advice, closer_to_reference(run), compared=compared)


def too_fast(run: Run) -> DiagnosisFinding | None:
    """Updates that the clip range cuts off."""
    clipped = run.above("clip_ratio/region_mean", MAX_CLIPPED)
    if clipped is None:
        return None
    cause = "The learning rate is too high: updates overshoot."
    evidence = [f"{clipped} (limit {MAX_CLIPPED:g})"]
    compared = [clipped.compared, Compared(label="limit", value=MAX_CLIPPED)]
    change = lower_learning_rate(run)
    return finding(
        "learning_rate_too_high", cause, evidence, "Lower the learning rate.", change, compared=compared
    )
