"""Rules about too few training rows or held-out rows. Boundary: pure rules over a run."""

from service.jobs.diagnosis.findings import Compared, DiagnosisFinding, Severity, finding, number
from service.jobs.diagnosis.held_out import (
    MIN_ROWS,
    best_of,
    evaluations,
    evidence_of,
    held_out_fall,
    is_good,
)
from service.jobs.diagnosis.run import Run
from service.jobs.diagnosis.training import training_fall

MIN_TRAINING_ROWS = 50
"""Fewer rows are easily memorised."""


def few_training_rows(run: Run) -> DiagnosisFinding | None:
    """The training file is so small that a rising reward may be memorised.

    A warning if the reward rises and the held-out rows are too few to contradict that.
    """
    if run.num_rows is None or run.num_rows >= MIN_TRAINING_ROWS or not run.step:
        return None
    known = evaluations(run)
    held_out = known[-1].rows if known else 0
    is_measured = held_out >= MIN_ROWS
    few = "1 held-out row is" if held_out == 1 else f"{held_out} held-out rows are"
    others = f"{few} too few to measure" if held_out else "no held-out rows measure"
    missing = "" if is_measured else f", and {others} other prompts"
    rows = f"{run.num_rows} {'row' if run.num_rows == 1 else 'rows'}"
    cause = f"The training file has only {rows}, which the model may memorise{missing}."
    advice = f"Train on more different rows: at least {MIN_TRAINING_ROWS}, preferably several hundred."
    if not is_measured:
        advice += f" Hold out at least {MIN_ROWS} others (validation_file)."
    evidence = [f"up to step {run.step}: training rows {run.num_rows}, held-out rows {held_out}"]
    compared = [
        Compared(label="training rows", value=run.num_rows),
        Compared(label="limit", value=MIN_TRAINING_ROWS),
    ]
    severity: Severity = "warning" if is_good(run) and not is_measured else "info"
    change = {"field": "training_file"}
    return finding("few_training_rows", cause, evidence, advice, change, severity, compared)


def few_held_out_rows(run: Run) -> DiagnosisFinding | None:
    """The held-out reward fell, but over too few rows for the verdict `reward_fell`."""
    known = held_out_fall(run)
    if not known or known[-1].rows >= MIN_ROWS or training_fall(run):
        return None
    best, last = best_of(known), known[-1]
    cause = (
        f"The held-out reward fell from {number(best.reward)} to {number(last.reward)}, but {last.rows} "
        "held-out rows are too few for a verdict."
    )
    advice = f"Hold out at least {MIN_ROWS} rows. Until then, compare some of their rollouts."
    compared = [
        Compared(label="held-out rows", value=last.rows),
        Compared(label="rows needed", value=MIN_ROWS),
    ]
    change = {"field": "validation_file"}
    evidence = evidence_of([best, last])
    return finding("few_held_out_rows", cause, evidence, advice, change, "info", compared)
