"""Rules about the held-out rows: what their evaluations show, alone and beside the training reward.

Training samples at its temperature and evaluations are usually greedy, so the rules compare changes since
the start. Levels are compared only if decoding cannot explain their difference. Boundary: pure rules.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from service.jobs.diagnosis.findings import Change, Compared, DiagnosisFinding, finding, number, rounded
from service.jobs.diagnosis.run import Run
from service.jobs.diagnosis.training import NUM_ERRORS, SMALL_EFFECT, Gain, gain_at, rise
from service.jobs.diagnosis.windows import BLOCK_STEPS, error_between, settled
from service.jobs.results.manifest import settings_in

MIN_ROWS = 50
"""Fewest held-out rows for a finding against a run. With fewer, a bootstrap's interval is too narrow."""
COMPARABLE = 0.5
"""A held-out gain counts as comparable if it is at least this share of the training gain."""
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Evaluation:
    """The held-out reward after a step, and its difference from the one before step 1."""

    step: int
    reward: float
    spread: float
    """Standard deviation of the rows' rewards."""
    rows: int
    difference: float = 0.0
    low: float = 0.0
    high: float = 0.0

    @property
    def square_error(self) -> float:
        return self.spread**2 / self.rows

    @property
    def compared(self) -> Compared:
        return Compared(label=f"held-out reward, step {self.step}", value=self.reward, step=self.step)

    def falls_from(self, best: "Evaluation") -> bool | None:
        """Whether the reward is below the best one by more than chance; None if undecided."""
        errors = (best.reward - self.reward) / (sqrt(best.square_error + self.square_error) or 1.0)
        return errors > NUM_ERRORS or self.high < 0 or (False if errors < 1 else None)


def evaluations(run: Run) -> list[Evaluation]:
    """All evaluations with rewards, the one before step 1 first; empty if that one is missing.

    An evaluation in which no row could be scored has no reward, but it has a spread, 0.
    """
    baseline = run.evaluation.get("baseline") or {}
    if not {"num_rows", "reward", "reward_std"} <= baseline.keys():
        return []
    first = Evaluation(0, baseline["reward"], baseline["reward_std"], int(baseline["num_rows"]))
    rows = (row for row in run.metrics if {"eval/reward", "eval/reward_std"} <= row.keys())
    return [first, *(_evaluation(run, row, first) for row in rows)]


def _evaluation(run: Run, row: Mapping[str, Any], first: Evaluation) -> Evaluation:
    """The evaluation in a row, with its stored interval or, in older jobs, the wider one of unpaired rows."""
    reward, spread, rows = row["eval/reward"], row["eval/reward_std"], int(row["eval/num_rows"])
    margin = NORMAL_95 * sqrt(first.square_error + spread**2 / rows)
    change = reward - first.reward
    found = {"difference": change, "low": change - margin, "high": change + margin}
    last = run.evaluation.get("last") or {}
    if last.get("step") == row["step"]:
        verdict = run.evaluation.get("verdict") or {}
        found |= {name: verdict[name] for name in found if verdict.get(name) is not None}
    stored = {"difference": "difference", "low": "difference_low", "high": "difference_high"}
    found |= {name: row[f"eval/{key}"] for name, key in stored.items() if f"eval/{key}" in row}
    return Evaluation(row["step"], reward, spread, int(row.get("eval/compared_rows", rows)), **found)


def held_out_gain(run: Run) -> Evaluation | None:
    """The newest evaluation, if the verdict is that the held-out reward rose and has not fallen since."""

    def judge(known: Sequence[Evaluation]) -> bool | None:
        if known[-1].falls_from(best_of(known)) or known[-1].difference <= 0:
            return False
        return known[-1].low > 0 or None

    known = evaluations(run)
    return known[-1] if _last_confirmed(run, known, judge) else None


def is_good(run: Run) -> bool:
    """Whether the held-out reward rose or, if that is not known, the training reward."""
    return (held_out_gain(run) or rise(run)) is not None


def _last_confirmed(
    run: Run, known: Sequence[Evaluation], judge: Callable[[Sequence[Evaluation]], bool | None]
) -> list[Evaluation]:
    """The evaluations up to the one that confirms the verdict; none if it is false.

    If a finished run has a single evaluation after the baseline, that one decides.
    """
    if len(known) == 2 and run.is_over:
        return list(known) if judge(known) else []
    end = settled(lambda end: judge(known[: end + 1]), range(1, len(known)))
    return [] if end is None else list(known[: end + 1])


def best_of(known: Sequence[Evaluation]) -> Evaluation:
    return max(known, key=lambda each: each.reward)


def not_held_out(run: Run) -> DiagnosisFinding | None:
    """The training reward rises, but the held-out reward does not: memorisation, or an exploited grader."""
    known = _last_confirmed(run, evaluations(run), lambda known: _is_not_held_out(run, known))
    gain = gain_at(run, known[-1].step) if known else None
    if gain is None:
        return None
    last, best = known[-1], best_of(known)
    was = (
        f"was {number(known[0].reward)} and is {number(last.reward)} (95% CI of the change {interval(last)})"
    )
    fell = f"fell from {number(best.reward)} (step {best.step}) to {number(last.reward)} (step {last.step})"
    cause = (
        f"The training reward rose from {number(gain.early.mean)} to {number(gain.late.mean)}, "
        f"but the held-out reward {fell if last.falls_from(best) else was}: {_reason(run)}."
    )
    evidence = [*gain.evidence, *evidence_of([best, last]), decoding(run)]
    compared = [gain.late.compared, last.compared]
    if _has_own_grader(run):
        advice = (
            "Read the best rollouts for what the grader accepts and the eval_grader does not."
            f"{best_checkpoint(run)}"
        )
        change: Change = {"field": f"method.{run.kind}.grader"}
    elif best.low > 0:  # training helped at first
        advice = f"Train on more different rows, or stop earlier.{best_checkpoint(run)}"
        change = _stop_earlier(run)
    else:
        advice, change = "Train on more different rows.", {"field": "training_file"}
    return finding("not_held_out", cause, evidence, advice, change, compared=compared)


def _is_not_held_out(run: Run, known: Sequence[Evaluation]) -> bool | None:
    last, best, gain = known[-1], best_of(known), gain_at(run, known[-1].step)
    gap = gain and _gap(run, gain, last)
    if last.rows < MIN_ROWS or gain is None or gap is None:
        return None
    if not gap or gain.mean < gain.error or _training_fell(run, gain, best.step):
        return False
    if not gain.is_rise:
        return None
    falls = last.falls_from(best)
    if falls or last.high < COMPARABLE * gain.lowest * _scale(run, known[0]):
        return True
    return False if last.low > 0 and falls is False else None


def _gap(run: Run, gain: Gain, last: Evaluation) -> bool | None:
    """Whether the training reward is above the held-out one; None if that may be chance.

    Greedy decoding rarely earns less than sampling, so decoding does not explain the gap. Always true if two
    graders are used, because their rewards cannot be compared.
    """
    if _has_own_grader(run):
        return True
    gap = gain.late.mean - last.reward
    error = sqrt(gain.late.square_error + last.square_error)
    return gap > 2 * error or (False if gap <= 0 else None)


def _training_fell(run: Run, gain: Gain, step: int) -> bool:
    """Whether the training reward also fell since `step`, so that the policy became worse on all prompts."""
    then = run.span("reward", max(1, step - BLOCK_STEPS + 1), step + BLOCK_STEPS)
    if then is None:
        return False
    return then.mean - gain.late.mean > NUM_ERRORS * error_between(then, gain.late)


def _has_own_grader(run: Run) -> bool:
    return settings_in(run.method).get("eval_grader") is not None


def _scale(run: Run, first: Evaluation) -> float:
    """Factor that converts a training reward to the held-out grader's scale; 1 with the same grader."""
    spread = run.span("reward_std", 1, BLOCK_STEPS) if _has_own_grader(run) else None
    return first.spread / spread.mean if spread and spread.mean and first.spread else 1.0


def _reason(run: Run) -> str:
    if _has_own_grader(run):
        return "what the grader pays for is not what the eval_grader measures"
    return f"the model memorises the {f'{run.num_rows} ' if run.num_rows else ''}training rows"


def best_checkpoint(run: Run) -> str:
    """Which checkpoint had the best held-out reward, as a sentence; empty for the start and the newest."""
    step = (run.evaluation.get("best") or {}).get("step") or 0
    last = (run.evaluation.get("last") or {}).get("step")
    return f" The checkpoint of step {step} has the best held-out reward." if 0 < step != last else ""


def _stop_earlier(run: Run) -> Change:
    if run.settings.get("early_stopping") is None:
        return run.setting("early_stopping", {"patience": 3, "min_improvement": 0.0})
    return {"field": "training_file"}


def held_out_fall(run: Run) -> list[Evaluation]:
    """The evaluations up to the one that confirms a fall from the best one, over however few rows."""
    return _last_confirmed(run, evaluations(run), lambda known: known[-1].falls_from(best_of(known)))


def more_rows(run: Run) -> DiagnosisFinding | None:
    """The training reward rises, but there are too few held-out rows to show whether their reward does."""

    def judge(known: Sequence[Evaluation]) -> bool | None:
        return known[-1].low <= 0 <= known[-1].high and not _is_not_held_out(run, known)

    gain, known = rise(run), _last_confirmed(run, evaluations(run), judge)
    if gain is None or not known or not_held_out(run):
        return None
    last = known[-1]
    needed = rows_needed(last, COMPARABLE * gain.mean * _scale(run, known[0]))
    cause = (
        f"{last.rows} held-out rows cannot show whether the held-out reward rises too: "
        f"its 95% interval is {interval(last)}."
    )
    advice = f"Use about {needed} held-out rows."
    compared = [
        Compared(label="held-out rows", value=last.rows),
        Compared(label="rows needed", value=needed),
    ]
    evidence = [*gain.evidence, *evidence_of([last]), decoding(run)]
    return finding("more_rows", cause, evidence, advice, _more_rows(run, last, needed), "info", compared)


def rows_needed(last: Evaluation, gain: float) -> int:
    """Number of rows for which the 95 % interval is narrower than `gain`, so it excludes 0 or `gain`."""
    width = last.high - last.low
    factor = max(2.0, (width / gain) ** 2)
    return max(MIN_ROWS, round(rounded(factor * last.rows)))


def _more_rows(run: Run, last: Evaluation, needed: int) -> Change:
    limit = run.settings.get("eval_samples")
    if isinstance(limit, int) and last.rows >= limit:
        return run.setting("eval_samples", needed)
    return {"field": "validation_file"}


def evidence_of(shown: Sequence[Evaluation]) -> list[str]:
    """A line on each different evaluation."""
    return [
        f"step {each.step}: held-out reward {number(each.reward)} over {each.rows} rows"
        + (f"; since step 0 {interval(each)} (95% CI)" if each.step else "")
        for each in dict.fromkeys(shown)
    ]


def interval(last: Evaluation) -> str:
    """The 95 % interval of the difference."""
    return f"{last.low:+.3g} to {last.high:+.3g}"


def greedy_or_sampled(run: Run) -> str:
    """How evaluations decode: "greedy" or "T = 1"."""
    temperature = run.settings.get("eval_temperature", 0.0)
    return f"T = {temperature:g}" if temperature else "greedy"


def level_of_training(run: Run, last: Evaluation) -> str:
    """Why the training reward is below the held-out one, as a sentence; empty if it hardly is.

    With two graders, the levels have nothing to explain.
    """
    gain = None if _has_own_grader(run) else gain_at(run, last.step)
    if gain is None or last.reward - gain.late.mean <= SMALL_EFFECT * gain.spread:
        return ""
    if run.settings.get("temperature", 1.0) <= run.settings.get("eval_temperature", 0.0):
        return ""
    return (
        f" The training reward ({number(gain.late.mean)}) is the mean of answers sampled at "
        f"T = {run.settings.get('temperature', 1.0):g}, so it is lower: compare changes, not levels."
    )


def decoding(run: Run) -> str:
    """How both rewards were decoded, as a line of evidence."""
    trained = f"T = {run.settings.get('temperature', 1.0):g}"
    if trained == greedy_or_sampled(run):
        return f"training and held-out rows are both sampled at {trained}"
    return (
        f"training samples at {trained}, held-out rows are decoded {greedy_or_sampled(run)}: "
        "changes are compared, not levels"
    )
