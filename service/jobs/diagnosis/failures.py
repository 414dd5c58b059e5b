"""Failed jobs: the cause behind each code, and the change that lets the job run.

Boundary: pure. The codes are the engine's (`grpo_engine/contract/errors.py`) and the worker's `poisoned`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from service.jobs.diagnosis.changes import lower_learning_rate
from service.jobs.diagnosis.findings import Change, DiagnosisFinding, finding
from service.jobs.diagnosis.run import Run
from service.jobs.diagnosis.signal import without_signal
from service.jobs.diagnosis.stability import reward_fell
from service.jobs.results.manifest import settings_in

SHOWN_LINES = 8
"""Number of lines of the stored evidence that a finding shows; `failure.evidence` has all."""
FAILED_CALLS = 0.5
"""Share of the tool calls that may fail; models that learn to call make many mistakes at first."""
TIMEOUT = "unresponsive_reward_error"
LIMITS = ("max_calls", "max_cost_usd")


def failure(run: Run) -> DiagnosisFinding | None:
    """The finding about the failure that ended the job; None if it did not fail."""
    if run.failure is None:
        return None
    code = str(run.failure["code"])
    cause, suggest = _CAUSES.get(code, ("The engine failed for a reason that has no rule here.", _same))
    lines = dict.fromkeys(str(line) for line in run.failure.get("evidence") or ())
    evidence = [f"at step {run.step} of {run.total_steps}: {run.failure['message']}"]
    evidence += list(lines)[:SHOWN_LINES]
    if code == "no_signal":
        if fallen := reward_fell(run):  # it had signal before
            change = lower_learning_rate(run)
            evidence += fallen.evidence
            return finding(code, fallen.cause, evidence, fallen.advice, change, "error", fallen.compared)
        if run.failing("tools/error_rate", FAILED_CALLS):
            tools: Change = {"field": f"method.{run.kind}.tools"}
            return finding(code, cause, evidence, str(run.failure["hint"]), tools, "error")
        if run.groups.num and not run.groups.num_flat:  # nothing was scored
            return finding(code, cause, evidence, str(run.failure["hint"]), suggest(run), "error")
        reason = without_signal(run)
        evidence += reason.evidence
        return finding(code, reason.cause or cause, evidence, reason.advice, reason.change, "error")
    if code == "grader_contract":
        evidence += error_lines(run)
    return finding(code, cause, evidence, str(run.failure.get("hint") or ""), suggest(run), "error")


def _same(_run: Run) -> Change:
    """No change, because the cause is outside the request; the same job can run once it is fixed."""
    return {"patch": {}}


def _at(field: str) -> Callable[[Run], Change]:
    """A field whose value a person must choose; `{kind}` in it is the method's type."""
    return lambda run: {"field": field.format(kind=run.kind)}


def slow_or_wrong_grader(run: Run) -> Change:
    """More time if graders timed out, otherwise the grader itself."""
    counts = {code: count for code, (count, _) in run.groups.errors.items()}
    if counts and max(counts, key=counts.__getitem__) == TIMEOUT:
        seconds = min(3600.0, 2 * run.settings["grader_timeout_seconds"])
        return run.setting("grader_timeout_seconds", seconds)
    grader = (run.method.get(run.kind) or {}).get("grader") or {}
    field = "environments" if grader.get("type") == "environment" else "grader"
    return {"field": f"method.{run.kind}.{field}"}


def error_lines(run: Run) -> list[str]:
    """One line for each kind of error in the stored rollouts."""
    return [f"{count} × {code}, {example}" for code, (count, example) in run.groups.errors.items()]


def _less_memory(run: Run) -> Change:
    if run.kind == "supervised":
        return run.setting("max_tokens", max(8, run.settings.get("max_tokens", 2048) // 2))
    tokens = run.settings["max_completion_tokens"]
    if tokens == 1:
        return {"field": f"method.{run.kind}.hyperparameters"}
    return run.setting("max_completion_tokens", tokens // 2)


def _less_memory_if_named(run: Run) -> Change:
    """Less memory if the failure's message says that memory ran out; other causes are outside the request."""
    is_named = run.failure is not None and "memory" in str(run.failure["message"]).lower()
    return _less_memory(run) if is_named else _same(run)


def _twice_the_limit(run: Run) -> Change:
    """Twice the limit that was reached, if only one limit is set."""
    limits = list(_limits(settings_in(run.method), ""))
    if len(limits) != 1:
        return {"field": f"method.{run.kind}"}
    path, value = limits[0]
    return run.change(path, 2 * value)


def _limits(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Path and value of each limit of calls or cost that is set, except inside lists."""
    for name, value in node.items() if isinstance(node, Mapping) else ():
        place = f"{path}.{name}".removeprefix(".")
        if name in LIMITS and value is not None:
            yield place, value
        yield from _limits(value, place)


_CAUSES: dict[str, tuple[str, Callable[[Run], Change]]] = {
    "dataset_invalid": ("A row of the dataset cannot be used by this model.", _at("training_file")),
    "config_invalid": (
        "The settings passed the checks, but the model cannot run with them.",
        _at("method.{kind}.hyperparameters"),
    ),
    "model_not_found": ("The base model did not load on the worker.", _at("model")),
    "model_gated": ("The hub requires an account with access to the base model.", _at("model")),
    "model_not_supported": ("The base model has no safetensors weights.", _at("model")),
    "base_model_changed": ("The base model's files were replaced while the job was not running.", _same),
    "grader_contract": ("Too many completions could not be scored by the grader.", slow_or_wrong_grader),
    "no_signal": ("No group had different rewards, so there was nothing to learn from.", _same),
    "non_finite": (
        "The loss or its gradient became NaN or infinite: the updates were too large.",
        lower_learning_rate,
    ),
    "out_of_memory": ("The job does not fit the device, even with the smallest micro-batches.", _less_memory),
    "disk_full": ("The worker's disk, or the storage, is full.", _same),
    "ray_missing": ("The job needs several processes, and its worker cannot start them.", _same),
    "environment_unreachable": ("The sessions of an environment fail, or its server is unreachable.", _same),
    "endpoint_failed": ("A server that the job depends on did not respond.", _same),
    "spend_limit": ("The job reached its own limit of calls or cost.", _twice_the_limit),
    "policy_mismatch": ("The sampler did not serve the policy that was being trained.", _same),
    "engine_error": ("The engine raised the same unexpected exception in two attempts.", _same),
    "ranks_disagree": ("The processes of the job would have started from different states.", _same),
    "poisoned": ("Too many attempts in a row ended without a new checkpoint.", _less_memory_if_named),
}
"""Error code → cause, and the function that suggests a change."""
CODES = tuple(_CAUSES)
