"""Changes of a request that several rules suggest."""

from service.jobs.diagnosis.findings import Change, rounded
from service.jobs.diagnosis.run import Run

FEWEST_TOKENS, MAX_TOKENS = 16, 131_072
HIGHEST_RATE = 1e-3
"""Highest suggested learning rate; adapters rarely tolerate more."""
READ_CUT_TEXT = (
    "Read some rollouts. If the text makes sense, allow more tokens; if it is noise, train supervised first."
)
"""Advice if all completions are cut and wrong, which more tokens need not change."""


def more_tokens(run: Run) -> Change:
    """Room for completions that are cut."""
    tokens = max(FEWEST_TOKENS, 2 * run.settings["max_completion_tokens"])
    return run.setting("max_completion_tokens", min(MAX_TOKENS, tokens))


def closer_to_reference(run: Run) -> Change:
    """A larger beta, or a smaller learning rate if the method has no beta."""
    alone = (run.settings.get("self_distillation") or {}).get("alone")
    if run.kind == "reinforcement" and not alone:
        beta = run.settings["beta"]
        return run.setting("beta", min(100.0, rounded(2 * beta)) if beta else 0.04)
    return lower_learning_rate(run)


def lower_learning_rate(run: Run) -> Change:
    """A third of the learning rate, at most `HIGHEST_RATE`."""
    if "learning_rate" not in run.settings:
        return {"field": f"method.{run.kind}.hyperparameters"}
    return run.setting("learning_rate", min(HIGHEST_RATE, rounded(run.settings["learning_rate"] / 3)))
