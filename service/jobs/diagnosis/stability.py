"""Rules about the size of the policy's updates: KL, entropy, clipping, gradients.

Boundary: pure rules over a run. Thresholds that a guard has too are the guard's.
"""

from statistics import fmean, median

from grpo_engine.config.guards import DEFAULT_THRESHOLDS, START_STEPS
from service.jobs.diagnosis.findings import DiagnosisFinding, finding, number
from service.jobs.diagnosis.run import Run
from service.jobs.diagnosis.signal import closer_to_reference, lower_learning_rate

MAX_CLIPPED = 0.3
"""Share of tokens outside of the clip range. A few percent are usual; at a third, most of a step is spent on
tokens without a gradient."""
SPIKE = 10.0
"""Multiple of the median gradient norm from which a step counts as a spike."""
MIN_SPIKES = 3
"""Fewest spikes that are a finding; one or two are an odd batch."""
HIGHER_CLIP = 0.28
"""DAPO's epsilon_high, which keeps rare tokens alive."""
RATIO_LOSSES = frozenset({"grpo", "dapo", "dr_grpo", "bnpo"})
"""Losses whose upper clip range is one of a token's ratio."""
SHOWN_SPIKES = 5


def far_away(run: Run) -> DiagnosisFinding | None:
    """The KL of a completion is larger than the guard's limit."""
    kl, length = run.recent("kl"), run.recent("completions/mean_length")
    limit = DEFAULT_THRESHOLDS["kl"]
    if kl is None or length is None or kl.mean * length.mean < limit:
        return None
    nats = number(kl.mean * length.mean)
    evidence = [f"{kl} a token × {number(length.mean)} tokens = {nats} nats (limit {limit:g})"]
    cause = "The policy is far from the reference: it may exploit the grader and lose abilities."
    advice = "Raise beta, or lower the learning rate."
    return finding("kl_explosion", cause, evidence, advice, closer_to_reference(run))


def collapsed(run: Run) -> DiagnosisFinding | None:
    """The policy always writes the same."""
    points, late = run.series("entropy"), run.recent("entropy")
    limit = DEFAULT_THRESHOLDS["entropy"]
    if late is None or len(points) <= 2 * START_STEPS:
        return None
    start = fmean(value for _, value in points[:START_STEPS])
    if start <= 0 or late.mean > limit * start:
        return None
    first = f"steps {points[0][0]}–{points[START_STEPS - 1][0]}: entropy {number(start)}"
    evidence = [first, f"{late} (limit {limit:g} of the start)"]
    cause = "The entropy has collapsed: the policy repeats itself and no longer explores."
    advice = "Raise epsilon_high so that rare tokens can grow, or lower the learning rate."
    change = lower_learning_rate(run)
    if run.settings["loss_type"] in RATIO_LOSSES and run.settings["epsilon_high"] < HIGHER_CLIP:
        change = run.setting("epsilon_high", HIGHER_CLIP)
    return finding("entropy_collapse", cause, evidence, advice, change)


def too_fast(run: Run) -> DiagnosisFinding | None:
    """Updates that the clip range cuts off, or gradients that jump."""
    evidence = [*_clipped(run), *_spikes(run)]
    if not evidence:
        return None
    cause = "The learning rate is too high: updates overshoot."
    return finding(
        "learning_rate_too_high", cause, evidence, "Reduce it to a third.", lower_learning_rate(run)
    )


def _clipped(run: Run) -> list[str]:
    clipped = run.recent("clip_ratio/region_mean")
    if clipped is None or clipped.mean < MAX_CLIPPED:
        return []
    return [f"{clipped} (limit {MAX_CLIPPED:g})"]


def _spikes(run: Run) -> list[str]:
    norms = run.series("grad_norm")
    usual = median(norm for _, norm in norms) if norms else 0.0
    spikes = [(step, norm) for step, norm in norms if usual > 0 and norm >= SPIKE * usual]
    if len(spikes) < MIN_SPIKES:
        return []
    shown = ", ".join(f"{number(norm)} in step {step}" for step, norm in spikes[-SHOWN_SPIKES:])
    return [f"median grad_norm {number(usual)}; {len(spikes)} steps above {SPIKE:g} × that: {shown}"]
