"""One failed run for each failure code."""

from typing import Any

from service.jobs.diagnosis.facts import counted
from service.jobs.diagnosis.run import Run
from service.jobs.model.states import JobState
from tests.service.jobs.diagnosis.runs import group, metrics, run


def failed(code: str, *evidence: str, message: str = "what happened", **more: Any) -> Run:
    failure = {"code": code, "message": message, "hint": "the hint", "evidence": list(evidence)}
    return run(metrics(4), state=JobState.FAILED, failure=failure, **more)


FAILED: dict[str, tuple[Run, str | None, Any]] = {
    "dataset_invalid": (failed("dataset_invalid"), "training_file", None),
    "config_invalid": (failed("config_invalid"), "method.reinforcement.hyperparameters", None),
    "model_not_found": (failed("model_not_found"), "model", None),
    "model_gated": (failed("model_gated"), "model", None),
    "model_not_supported": (failed("model_not_supported"), "model", None),
    "base_model_changed": (failed("base_model_changed"), None, {}),
    "grader_contract": (failed("grader_contract"), "method.reinforcement.grader", None),
    "no_signal": (
        failed("no_signal", groups=counted([group(0, 0, step=1)])),
        "method.reinforcement.grader",
        None,
    ),
    "non_finite": (
        failed("non_finite"),
        "method.reinforcement.hyperparameters.learning_rate",
        {"learning_rate": 3.3e-06},
    ),
    "out_of_memory": (
        failed("out_of_memory"),
        "method.reinforcement.hyperparameters.max_completion_tokens",
        {"max_completion_tokens": 8},
    ),
    "poisoned": (failed("poisoned"), None, {}),
    "disk_full": (failed("disk_full"), None, {}),
    "ray_missing": (failed("ray_missing"), None, {}),
    "engine_error": (failed("engine_error"), None, {}),
    "endpoint_failed": (failed("endpoint_failed"), None, {}),
    "environment_unreachable": (failed("environment_unreachable"), None, {}),
    "policy_mismatch": (failed("policy_mismatch"), None, {}),
    "ranks_disagree": (failed("ranks_disagree"), None, {}),
    "spend_limit": (failed("spend_limit"), "method.reinforcement", None),
}
"""Failure code → the run, the field to change, the hyperparameters that its patch sets ({}: as it was)."""
