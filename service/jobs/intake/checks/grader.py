"""Checks that the operator offers the endpoints and models that graders name.

Boundary: opens no URL; `grpo_engine.outbound.addresses` checks URLs.
"""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_engine.config.job import Method, TrainingFree
from grpo_engine.files.model_folder import damage
from grpo_engine.graders.base import GraderBase
from grpo_engine.graders.rules.endpoint import Endpoint
from grpo_engine.graders.rules.multi import Multi
from grpo_engine.graders.rules.process import Process
from grpo_engine.graders.rules.reward_model import RewardModel
from grpo_engine.graders.rules.score_model import ScoreModel
from grpo_engine.outbound.chat_client import ChatClient
from grpo_engine.outbound.operator_endpoints import EndpointError, find_endpoint, load_endpoints
from service.jobs.intake.report import Report
from service.jobs.model.dataset import Problems
from service.jobs.model.methods import eval_grader_of, grader_of, leaves, retention_of, with_settings
from service.platform.catalog import Catalog

CLASSIFIES = "ForSequenceClassification"
"""End of the names of transformers' classes that may be reward models."""


def check_grader(where: str, grader: GraderBase, catalog: Catalog, problems: Problems) -> None:
    """Adds a problem for each endpoint or model that a grader needs and the deployment lacks."""
    for place, rule in leaves(where, grader):
        match rule:
            case RewardModel():
                _check_reward_model(place, rule, catalog, problems)
            case ScoreModel():
                check_endpoint(f"{place}.endpoint", rule.endpoint, rule.model, problems)
                _check_prices(f"{place}.max_cost_usd", rule.endpoint, rule.max_cost_usd, problems)
            case Endpoint(endpoint=str(name)):
                check_endpoint(f"{place}.endpoint", name, None, problems)


def check_endpoint_models(report: Report) -> None:
    """Checks endpoints and prices of the models that a training-free job uses in place of its own."""
    method, problems = report.method, report.problems
    if not isinstance(method, TrainingFree):
        return
    given, where = method.training_free.hyperparameters, "method.training_free.hyperparameters"
    for name, speaker in (("rollouts", given.rollouts), ("reflection", given.reflection)):
        if speaker != "model":
            check_endpoint(f"{where}.{name}.endpoint", speaker.endpoint, speaker.model, problems)
            _check_prices(f"{where}.max_cost_usd", speaker.endpoint, given.max_cost_usd, problems)


def check_endpoint(where: str, name: str, model: str | None, problems: Problems) -> None:
    """Checks that the operator has this endpoint and offers the model there, if one is named."""
    try:
        find_endpoint(name) if model is None else ChatClient(name, model)
    except EndpointError as error:
        problems.add(where, str(error), code="endpoint_not_found")


def _check_prices(where: str, name: str, limit: float | None, problems: Problems) -> None:
    """Adds a problem if there is a limit of cost, but the endpoint has no prices."""
    endpoint = load_endpoints().get(name) if limit is not None and not problems.found else None
    if endpoint is not None and endpoint.cost_usd(0, 0) is None:
        problems.add(where, f"the operator has set no prices for the endpoint {name!r}: use max_calls")


def _check_reward_model(place: str, rule: RewardModel, catalog: Catalog, problems: Problems) -> None:
    for name in ("path", "revision"):
        if getattr(rule, name) is not None:
            problems.add(f"{place}.{name}", "is set by the model catalogue: give only model")
    entry = catalog.find(rule.model)
    if entry is None:
        reason = f"{rule.model!r} is not in the model catalogue"
        problems.add(f"{place}.model", reason, code="model_not_found")
    elif entry.folder is not None:
        with suppress(OSError):  # files that only the worker may read
            if fault := _fault(entry.folder, has_weights=not entry.must_download):
                problems.add(f"{place}.model", fault, code="model_not_supported")


def _fault(folder: Path, *, has_weights: bool) -> str | None:
    """Why the grading process would refuse a folder; None if its files show no reason. Raises OSError."""
    if has_weights and (found := damage(folder)):
        return f"cannot be loaded: {found}"
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (ValueError, RecursionError) as error:
        return f"cannot be loaded: config.json cannot be read: {error}"
    match config:
        case {"architectures": [str(name)]} if not name.endswith(CLASSIFIES):
            return f"is not a reward model: it is a {name}, and a reward model classifies sequences"
        case {"id2label": dict(labels)} if len(labels) != 1:
            return f"is not a reward model: it has {len(labels)} labels instead of one"
    return None


def with_paths(grader: Any, catalog: Catalog) -> Any:
    """The grader with the catalogue's paths of its reward models. Raises LookupError with a missing name."""
    match grader:
        case RewardModel():
            entry = catalog.find(grader.model)
            if entry is None:
                raise LookupError(grader.model)
            return grader.model_copy(update={"path": entry.path, "revision": entry.revision})
        case Multi():
            parts = {key: with_paths(part, catalog) for key, part in grader.graders.items()}
            return grader.model_copy(update={"graders": parts})
        case Process():
            return grader.model_copy(update={"grader": with_paths(grader.grader, catalog)})
    return grader


def method_with_paths(method: Method, catalog: Catalog) -> Method:
    """The method with the catalogue's paths of its graders' reward models. Raises LookupError."""
    named = {"grader": grader_of(method), "eval_grader": eval_grader_of(method)}
    changed: dict[str, Any] = {name: with_paths(given, catalog) for name, given in named.items() if given}
    if retention := retention_of(method):
        changed["retention"] = tuple(
            kept.model_copy(update={"grader": with_paths(kept.grader, catalog)}) for kept in retention
        )
    return with_settings(method, **changed)
