"""Clones a job: applies a merge patch to its request, which is then created like any other job.

The patch follows RFC 7386, with two additions. An object whose `type` changes (a grader, a method) is
replaced, not merged. A changed setting also removes its other spelling: a new `prompts_per_step` drops the
old `batch_size`, a new `validation_split` the old `validation_file`, and a new `training_file` the `dataset`.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from grpo_engine.config.recipes import ALIASES, rename_aliases
from service.jobs.intake import creation
from service.jobs.intake.preflight import Preflight
from service.jobs.model.openai_terms import from_older_form, from_openai_terms
from service.jobs.model.schemas import JobCreate
from service.jobs.store.repository import require_job
from service.jobs.store.wakeups import Wakeups
from service.platform.tables.core import Job
from service.web.validation import invalid_request

SPELLINGS = {
    "group_size": "compute_multiplier",
    "prompts_per_step": "batch_size",
    "learning_rate": "learning_rate_multiplier",
    "n_steps": "n_epochs",
}
"""Two names for one setting: if one changes, the other would contradict it."""
_ALTERNATIVES = (
    ("training_file", "dataset"),
    ("validation_file", "validation_split", "validation_dataset"),
)
"""Groups of fields of which a request has at most one."""
_PARTNERS = SPELLINGS | {second: first for first, second in SPELLINGS.items()}


def clone_job(
    preflight: Preflight, wakeups: Wakeups, sender: creation.Sender, job_id: str, patch: Mapping[str, Any]
) -> creation.Created:
    """Creates a job from the job's patched request.

    Raises NotFound, InvalidRequest if the patched request is invalid, and what `create_job` raises.
    """
    with preflight.database.reading() as session:
        requested = original(require_job(session, sender.principal.tenant, job_id))
    request = creation.JobRequest(sender, patched(requested, patch), cloned_from=job_id)
    return creation.create_job(preflight, wakeups, request)


def original(job: Job) -> dict[str, Any]:
    """The request that creates this job again, with its seed. Call it inside the job's session.

    It has the job's current tags, but not its name and notes, which describe only that job.
    """
    if job.requested is not None:
        kept = {name: value for name, value in job.requested.items() if name not in ("name", "notes")}
        return {**kept, "seed": job.seed, "tags": job.tags}
    columns = (
        *("model", "training_file", "validation_file", "validation_split", "suffix"),
        *("seed", "resources", "method", "tags"),
    )
    return {name: getattr(job, name) for name in columns} | {"metadata": job.labels}


def patched(requested: Mapping[str, Any], patch: Mapping[str, Any]) -> JobCreate:
    """The changed request. Raises InvalidRequest."""
    if patch.get("method") is not None:
        requested = from_older_form(requested)  # the patch changes its hyperparameters there
    new = {name for name, value in patch.items() if value is not None}
    dropped = {name for group in _ALTERNATIVES if new & set(group) for name in group if name not in new}
    kept = {name: value for name, value in requested.items() if name not in dropped - patch.keys()}
    body = merged(from_openai_terms(kept), from_openai_terms(patch))
    try:
        return JobCreate.model_validate(body)
    except ValidationError as error:
        raise invalid_request(error.errors(), body, JobCreate) from error


def merged(target: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    """`target` with `patch` over it; null removes a field."""
    result = dict(target) if isinstance(target, Mapping) else {}
    if "type" in result and patch.get("type", result["type"]) != result["type"]:
        result = {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif not isinstance(value, Mapping):
            result[name] = value
        elif name == "hyperparameters":
            result[name] = _with_settings(result.get(name), value)
        else:
            result[name] = merged(result.get(name), value)
    return result


def _with_settings(before: Any, patch: Mapping[str, Any]) -> dict[str, Any]:
    """The hyperparameters merged under the service's own names, without those that a change contradicts."""
    settings = _renamed(before) if isinstance(before, Mapping) else {}
    patch = _renamed(patch)
    changed = {name for name, value in patch.items() if value is not None}
    stale = {_PARTNERS[name] for name in changed & _PARTNERS.keys()} - patch.keys()
    return merged({name: value for name, value in settings.items() if name not in stale}, patch)


def _renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return rename_aliases(dict(settings), ALIASES)
    except ValueError:
        return dict(settings)  # two of them contradict each other, which validation of the request reports
