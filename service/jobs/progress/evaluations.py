"""A job's evaluations: the document `jobs.evaluation`, and the metrics and messages of each evaluation.

{"baseline": …, "best": …, "last": …, "verdict": …, "retention": {name: {"baseline", "last", "verdict"}}}
"""

from collections.abc import Mapping
from typing import Any, Literal

from grpo_engine.contract.events import VALIDATION, Evaluated, quality
from service.jobs.progress.metrics import EVALUATION

OPENAI_NAMES = {"reward": "mean_reward", "loss": "loss", "mean_token_accuracy": "mean_token_accuracy"}


def with_event(known: Mapping[str, Any], event: Evaluated) -> dict[str, Any] | None:
    """The document with an evaluation added; None if it already has one of that step.

    The first evaluation of a step counts, because a resumed engine repeats those since its checkpoint.
    """
    if event.name == VALIDATION:
        found = _newer(known, event)
        if found is None:
            return None
        best = max(known.get("best", found["last"]), found["last"], key=quality)
        return {**known, **found, "best": best}
    sets = known.get("retention", {})
    found = _newer(sets.get(event.name, {}), event)
    return None if found is None else {**known, "retention": {**sets, event.name: found}}


def with_decoding(document: Mapping[str, Any], method: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the number of `rows` and the `temperature` of the completions in each evaluation.

    A temperature of 0 means greedy. None: nothing was sampled, or the job is older than the setting.
    """
    settings = method.get(method["type"], {})
    temperature = settings.get("hyperparameters", {}).get("eval_temperature")
    found = dict(document)
    for name in found.keys() & {"baseline", "best", "last"}:
        found[name] = {**found[name], "temperature": temperature}
        if "num_rows" in found[name]:
            found[name]["rows"] = int(found[name]["num_rows"])
    sets = {name: with_decoding(each, method) for name, each in found.get("retention", {}).items()}
    return found | ({"retention": sets} if sets else {})


def _newer(known: Mapping[str, Any], event: Evaluated) -> dict[str, Any] | None:
    last = known.get("last")
    if last is not None and event.step <= last["step"]:
        return None
    found = {"step": event.step, **event.metrics}
    verdict = {"verdict": event.verdict.model_dump(mode="json")} if event.verdict else {}
    return {"baseline": known.get("baseline", found), "last": found, **verdict}


def baseline(document: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of the evaluations before training, under the names of `metrics`."""
    sets = {f"{name}/": found for name, found in document.get("retention", {}).items()}
    return {
        f"{EVALUATION}{prefix}{name}": value
        for prefix, found in ({"": document} | sets).items()
        for name, value in found.get("baseline", {}).items()
        if name != "step"
    }


def metrics(event: Evaluated) -> dict[str, float]:
    """The event's values by metric name: `eval/…`, or `eval/<name>/…` for a retention set.

    For the job's own rows, the verdict's numbers are added, so that each evaluation keeps its interval:
    `eval/difference`, `eval/difference_low`, `eval/difference_high`, `eval/compared_rows`.
    """
    if event.name != VALIDATION:
        return {f"{EVALUATION}{event.name}/{name}": value for name, value in event.metrics.items()}
    verdict: dict[str, float | None] = {}
    if event.verdict is not None and event.verdict.difference is not None:
        verdict = {
            "difference": event.verdict.difference,
            "difference_low": event.verdict.low,
            "difference_high": event.verdict.high,
            "compared_rows": float(event.verdict.rows),
        }
    known = {**event.metrics, **verdict}
    return {f"{EVALUATION}{name}": value for name, value in known.items() if value is not None}


def conclusion(event: Evaluated) -> tuple[str, dict[str, Any], str] | None:
    """Message, data and level of the whole training's result; None before its end."""
    if not event.is_final or event.verdict is None:
        return None
    verdict = event.verdict
    data = {"step": event.step, "set": event.name, "verdict": verdict.model_dump(mode="json")}
    is_loss = verdict.high is not None and verdict.high < 0
    compared = "" if verdict.difference is None else f" ({verdict.rows} rows compared)"
    steps = f"{event.step} {'step' if event.step == 1 else 'steps'}"
    subject = "held-out reward" if event.name == VALIDATION else f"reward of retention set {event.name}"
    message = f"Change of the {subject} after {steps}: {verdict.text}{compared}."
    return message, data, "warn" if is_loss else "info"


def in_openai_names(metrics: Mapping[str, float], prefix: Literal["train", "full_valid"]) -> dict[str, float]:
    """The metrics that OpenAI has a name for, such as `train_mean_reward`."""
    return {f"{prefix}_{theirs}": metrics[ours] for ours, theirs in OPENAI_NAMES.items() if ours in metrics}
