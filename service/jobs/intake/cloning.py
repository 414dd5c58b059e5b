"""Clones a job: its request with a merge patch over it, created like any other job.

Merge patches are RFC 7386's, with two additions that a person means anyway. An object whose `type` changes
(a grader, a method) is replaced and not mixed. A changed setting takes the place of its other spelling: a
new `prompts_per_step` drops the `batch_size` of before.
Boundary: documents in, a request out; checks, limits and idempotency are `creation.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from grpo_engine.config.recipes import ALIASES, rename_aliases
from service.jobs.intake import creation
from service.jobs.intake.preflight import Preflight
from service.jobs.model.openai_terms import from_openai_terms
from service.jobs.model.schemas import JobCreate
from service.jobs.store.repository import require_job
from service.jobs.store.wakeups import Wakeups
from service.platform.principal import Principal
from service.platform.tables.core import Job
from service.web.validation import invalid_request

SPELLINGS = {
    "group_size": "compute_multiplier",
    "prompts_per_step": "batch_size",
    "learning_rate": "learning_rate_multiplier",
    "n_steps": "n_epochs",
}
"""Two settings that say the same: with one of them changed the other would contradict it."""
_PARTNERS = SPELLINGS | {second: first for first, second in SPELLINGS.items()}


def clone_job(
    preflight: Preflight,
    wakeups: Wakeups,
    principal: Principal,
    job_id: str,
    patch: Mapping[str, Any],
    asked: tuple[str | None, bool, str],
) -> creation.Created:
    """A new job from the job's patched request. `asked`: idempotency key, is it a retry, request id.

    Raises NotFound, InvalidRequest if the patched request is invalid, and what `create_job` raises.
    """
    with preflight.database.reading() as session:
        job = require_job(session, principal.tenant, job_id)
        requested = original(job)
    request = creation.JobRequest(principal, patched(requested, patch), *asked, cloned_from=job_id)
    return creation.create_job(preflight, wakeups, request)


def original(job: Job) -> dict[str, Any]:
    """The request that makes this job again, with the seed that it got; inside the job's session."""
    if job.requested is not None:
        return {**job.requested, "seed": job.seed}
    columns = ("model", "training_file", "validation_file", "suffix", "seed", "resources", "method")
    return {name: getattr(job, name) for name in columns} | {"metadata": job.labels}


def patched(requested: Mapping[str, Any], patch: Mapping[str, Any]) -> JobCreate:
    """The changed request. Raises InvalidRequest."""
    body = merged(from_openai_terms(requested), from_openai_terms(patch))
    try:
        return JobCreate.model_validate(body)
    except ValidationError as error:
        raise invalid_request(error.errors(), body) from error


def merged(target: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    """`target` with `patch` over it; null removes a field."""
    known = {} if not isinstance(target, Mapping) or _is_another_type(target, patch) else dict(target)
    for name, value in patch.items():
        if value is None:
            known.pop(name, None)
        elif not isinstance(value, Mapping):
            known[name] = value
        elif name == "hyperparameters":
            known[name] = _with_settings(known.get(name), value)
        else:
            known[name] = merged(known.get(name), value)
    return known


def _is_another_type(target: Mapping[str, Any], patch: Mapping[str, Any]) -> bool:
    return "type" in target and "type" in patch and target["type"] != patch["type"]


def _with_settings(before: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    """Hyperparameters merged under our names, without what a change contradicts."""
    known = _renamed(before) if isinstance(before, Mapping) else {}
    patch = _renamed(patch)
    changed = {name for name, value in patch.items() if value is not None}
    stale = {_PARTNERS[name] for name in changed & _PARTNERS.keys()} - patch.keys()
    return merged({name: value for name, value in known.items() if name not in stale}, patch)


def _renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return rename_aliases(dict(settings), ALIASES)
    except ValueError:
        return dict(settings)  # it contradicts itself; validation of the whole request reports where
