"""Rules about the training reward: whether it rises, stays or falls, and whether there are enough steps.

Boundary: pure rules over a run.
"""

from dataclasses import dataclass
from math import ceil, inf, log, sqrt

from service.jobs.diagnosis.findings import DiagnosisFinding, finding, number, rounded
from service.jobs.diagnosis.run import Run
from service.jobs.diagnosis.windows import BLOCK_STEPS, MIN_STEPS, Span, error_between, num_until, settled
from service.jobs.model.states import JobState

REWARD = "reward"
NUM_ERRORS = 3.0
"""Standard errors that a rise or fall needs. Two would be too few: a run is judged every ten steps, and each
judgment may reach two by chance."""
NO_RISE_ERRORS = 1.0
"""An earlier verdict of a rise is withdrawn below this many standard errors."""
SMALL_EFFECT = 0.2
"""Share of the rewards' standard deviation. A smaller change is ignored (Cohen 1988, "small effect")."""
FALL_EFFECT = 0.5
"""Share of the standard deviation that a fall needs (Cohen's "medium effect"), since a plateau varies too."""
SLOW_STEPS = 50
"""Until this step, a reward that does not rise is not a finding, because many runs start slowly."""
STILL_NATS = 0.01
"""KL of a completion below which the policy has hardly moved."""
LAST_PART = 0.25
"""Share of a supervised run in which its held-out loss must have stopped falling."""
LOSS_FALL = 0.1
"""Share of the held-out loss by which it still falls in that part."""
MAX_EPOCHS = 50
"""Largest `n_epochs` of a request."""
MAX_STEPS_FACTOR = 10
"""Maximum number of suggested steps, as a multiple of the steps done."""


@dataclass(frozen=True)
class Gain:
    """The reward of the first ten steps against that of a later window of up to twenty."""

    early: Span
    late: Span
    spread: float
    """Mean standard deviation of a step's rewards."""

    @property
    def mean(self) -> float:
        return self.late.mean - self.early.mean

    @property
    def error(self) -> float:
        return error_between(self.early, self.late)

    @property
    def lowest(self) -> float:
        """Lower end of the 95 % interval."""
        return self.mean - 2 * self.error

    @property
    def is_rise(self) -> bool:
        return self.mean > max(NUM_ERRORS * self.error, SMALL_EFFECT * self.spread)

    @property
    def evidence(self) -> list[str]:
        return [str(self.early), str(self.late)]


def gain_at(run: Run, end: int) -> Gain | None:
    """The gain up to step `end`; None if there are not yet two blocks."""
    early = run.span(REWARD, 1, BLOCK_STEPS)
    late = run.span(REWARD, max(BLOCK_STEPS, end - 2 * BLOCK_STEPS) + 1, end)
    return Gain(early, late, _spread(run, end)) if early and late and end >= MIN_STEPS else None


def rise(run: Run) -> Gain | None:
    """The gain, if the verdict is that the training reward rises."""

    def judge(end: int) -> bool | None:
        gain = gain_at(run, end)
        if gain is None:
            return None
        return gain.is_rise or (False if gain.mean < NO_RISE_ERRORS * gain.error else None)

    end = settled(judge, run.ends)
    return None if end is None else gain_at(run, end)


def is_selected(run: Run) -> bool:
    """Whether prompts are chosen by their reward, so that its level does not measure the policy."""
    return run.settings.get("curriculum", "none") != "none"


def training_fall(run: Run) -> tuple[Span, Span] | None:
    """The best ten steps and the last twenty, if the verdict is that the training reward has fallen."""
    end = None if is_selected(run) else settled(lambda end: _has_fallen(run, end), run.ends)
    return None if end is None else _best_and_late(run, end)


def _has_fallen(run: Run, end: int) -> bool | None:
    found = _best_and_late(run, end)
    if found is None:
        return None
    best, late = found
    fall, error = best.mean - late.mean, error_between(best, late)
    # by chance, the best of n blocks is about √(2 ln n) standard errors above its true mean
    needed = NUM_ERRORS + sqrt(2 * log(max(1, end // BLOCK_STEPS - 2)))
    if fall > max(needed * error, FALL_EFFECT * _spread(run, end)):
        return True
    return False if fall < (needed - 1) * error else None


def _best_and_late(run: Run, end: int) -> tuple[Span, Span] | None:
    """The best block, and the last one or two up to `end` after it."""
    start = max(BLOCK_STEPS, end - 2 * BLOCK_STEPS) + 1
    best = run.best_blocks[start // BLOCK_STEPS - 1]
    late = run.span(REWARD, start, end)
    return (best, late) if best and late and end >= MIN_STEPS else None


def _spread(run: Run, end: int) -> float:
    """Mean standard deviation of a step's rewards."""
    num = num_until(run.series("reward_std"), end)
    return run.mean_spreads[num - 1] if num else 0.0


def reward_flat(run: Run) -> DiagnosisFinding | None:
    """Groups have signal, but statistics show that the reward does not rise."""
    end = None if is_selected(run) or rise(run) else settled(lambda end: _is_flat(run, end), run.ends)
    halves = None if end is None else (run.span(REWARD, 1, end // 2), run.span(REWARD, end // 2 + 1, end))
    if end is None or halves is None or None in halves:
        return None
    evidence = [*map(str, halves), _change(run, end)]
    kl, length = (run.span(name, end - MIN_STEPS + 1, end) for name in ("kl", "completions/mean_length"))
    moved = ""
    if kl and length:
        nats = kl.mean * length.mean
        evidence.append(f"{kl}, {number(nats)} nats a completion")
        moved = ", and the policy has hardly moved" if nats < STILL_NATS else ""
    cause = f"The reward does not rise although groups have signal{moved}."
    advice = "Raise the learning rate. If the reward is high already, stop here."
    change = run.setting("learning_rate", min(1.0, rounded(3 * run.settings["learning_rate"])))
    compared = [half.compared for half in halves if half]
    return finding("reward_flat", cause, evidence, advice, change, compared=compared)


def _is_flat(run: Run, end: int) -> bool | None:
    """True if even the upper end of the change's 95 % interval is too small for a gain; None if undecided."""
    gain = gain_at(run, end)
    if gain is None or end < SLOW_STEPS:
        return None
    change, error = _fitted(run, end)
    if change + 2 * error < SMALL_EFFECT * gain.spread:
        return True
    return False if gain.is_rise else None


def too_few_steps(run: Run) -> DiagnosisFinding | None:
    """Too early to judge."""
    num_steps = len(run.series(REWARD)) or len(run.series("loss"))
    if num_steps >= MIN_STEPS or run.failure is not None or (not num_steps and not run.is_over):
        return None
    cause = "There are too few steps to judge whether the job learns."
    evidence = [f"{run.step} of {run.total_steps} steps done; trends need at least {MIN_STEPS}"]
    if not run.is_over and run.total_steps >= MIN_STEPS:
        return finding("too_few_steps", cause, evidence, "Wait.", {}, "info")
    change = run.setting("n_steps", max(5 * MIN_STEPS, 2 * run.total_steps))
    return finding("too_few_steps", cause, evidence, "Train longer.", change, "info")


def loss_still_falls(run: Run) -> DiagnosisFinding | None:
    """The held-out loss of a finished supervised run fell until its end."""
    losses = run.series("eval/loss")
    early = [point for point in losses if point[0] <= (1 - LAST_PART) * run.step]
    if run.state is not JobState.SUCCEEDED or not early or losses[-1][1] > (1 - LOSS_FALL) * early[-1][1]:
        return None
    num_epochs = run.settings.get("n_epochs", "auto")
    longer = 2 * (1 if num_epochs == "auto" else num_epochs)
    is_in_steps = run.settings.get("n_steps") or longer > MAX_EPOCHS
    change = run.setting("n_steps", 2 * run.total_steps) if is_in_steps else run.setting("n_epochs", longer)
    cause = "The held-out loss still fell at the end."
    evidence = [f"step {step}: held-out loss {number(loss)}" for step, loss in (early[-1], losses[-1])]
    return finding("loss_still_falls", cause, evidence, "Train longer.", change, "info")


def more_steps(run: Run) -> DiagnosisFinding | None:
    """The steps so far do not show whether the reward rises."""
    num_steps, last = len(run.series(REWARD)), max(run.ends, default=0)
    if last < MIN_STEPS or is_selected(run):
        return None
    _, error = _fitted(run, last)
    target = SMALL_EFFECT * _spread(run, last)
    cause = f"{num_steps} steps are too few to show whether the reward rises."
    factor = min(MAX_STEPS_FACTOR, max(2.0, (2 * error / target) ** 2 if target else 0.0))
    needed = ceil(rounded(factor * num_steps))
    advice = f"About {needed} steps will show it, or fewer with more prompts per step."
    if not run.is_over and run.total_steps >= needed:
        return finding("more_steps", cause, [_change(run, last)], f"Wait. {advice}", {}, "info")
    change = run.setting("n_steps", needed)
    return finding("more_steps", cause, [_change(run, last)], advice, change, "info")


def _fitted(run: Run, end: int) -> tuple[float, float]:
    """Change of the reward along a line through all steps up to `end`, and its standard error."""
    num = num_until(run.series(REWARD), end)
    return run.reward_changes[num - 1] if num else (0.0, inf)


def _change(run: Run, end: int) -> str:
    change, error = _fitted(run, end)
    interval = f"95% CI {change - 2 * error:+.3g} to {change + 2 * error:+.3g}"
    return f"change of the reward over steps 1–{end}: {change:+.3g} ({interval})"
