"""`/v1/fine_tuning/jobs/{id}/rollouts`: all completions that a job has sampled, and exports."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse
from pydantic import StringConstraints

from grpo_engine.contract.events import Split
from service.jobs.api.dependencies import JobId
from service.jobs.api.shared_view import shown_to
from service.platform.errors import InvalidRequest
from service.platform.tables.core import Job
from service.rollouts import exports, repository, service
from service.rollouts.datasets import TrainedSplit, find_dataset
from service.rollouts.exports import Source
from service.rollouts.rescore import Rescore
from service.rollouts.schemas import CompletionRead, RescoreRead, RescoreRequest, RolloutOverview, RolloutRead
from service.rollouts.selection import Filter, Property, Selection
from service.web.auth import Reader
from service.web.dependencies import DatabaseDep, StorageDep
from service.web.pagination import MAX_NUMBER, After, Limit, Page, page_of

router = APIRouter(prefix="/v1/fine_tuning/jobs/{job_id}", tags=["fine-tuning"])

Step = Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="The only step to return.")]
FromStep = Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="First step, inclusive.")]
ToStep = Annotated[int | None, Query(ge=0, le=MAX_NUMBER, description="Last step, inclusive.")]
Part = Annotated[str, StringConstraints(pattern="[^,]", max_length=1024)]
Fired = Annotated[
    list[Part] | None,
    Query(description="Parts of the reward above `fired_above`, separated by commas or repeated."),
]
NotFired = Annotated[
    list[Part] | None, Query(description="Parts of the reward at or below `fired_above`; errors are neither.")
]
FiredAbove = Annotated[float, Query(allow_inf_nan=False, description="Reward above which a part has fired.")]
SplitQuery = Annotated[
    Split | None, Query(description="Rollouts of training or of evaluations; by default all.")
]
FilterQuery = Annotated[
    Filter | None, Query(description="Only groups or completions with this property, or an order by reward.")
]
PropertyQuery = Annotated[Property | None, Query(description="Only groups with this property.")]
TrainedSplitQuery = Annotated[TrainedSplit, Query(description="Rollouts of training or of evaluations.")]


async def _parts(
    fired: Fired = None,
    not_fired: NotFired = None,
    fired_above: FiredAbove = 0.0,
    step: Step = None,
    from_step: FromStep = None,
    to_step: ToStep = None,
) -> Selection:
    """The selection by parts and steps. Raises InvalidRequest if the steps contradict each other."""
    if step is not None and not (from_step is None and to_step is None):
        raise InvalidRequest("step: cannot be combined with from_step or to_step.", param="step")
    first, last = (from_step, to_step) if step is None else (step, step)
    if first is not None and last is not None and first > last:
        raise InvalidRequest("from_step: must not be greater than to_step.", param="from_step")
    return Selection(first, last, fired=_listed(fired), not_fired=_listed(not_fired), fired_above=fired_above)


PartsDep = Annotated[Selection, Depends(_parts)]


async def _selection(parts: PartsDep, split: SplitQuery = None, filter: FilterQuery = None) -> Selection:
    """The selection of a list."""
    return replace(parts, split=split, filter=filter)


SelectionDep = Annotated[Selection, Depends(_selection)]


def _job(job_id: JobId, principal: Reader, database: DatabaseDep, parts: PartsDep) -> Job:
    return service.checked_job(database, principal.tenant, job_id, parts)


JobDep = Annotated[Job, Depends(_job)]


def _source(
    database: DatabaseDep,
    storage: StorageDep,
    job: JobDep,
    parts: PartsDep,
    split: TrainedSplitQuery = "train",
) -> Source:
    """Rollouts and rows for a dataset. Raises InvalidRequest if the training file is gone."""
    dataset = find_dataset(database, storage, job, split)
    return Source(database, job, replace(parts, split=split), dataset)


SourceDep = Annotated[Source, Depends(_source)]
RescoreDep = Annotated[Rescore, Depends()]
PerPrompt = Annotated[int, Query(ge=1, le=16, description="Maximum examples of one prompt.")]
MinReward = Annotated[float, Query(allow_inf_nan=False, description="Minimum reward of an example.")]
MinMargin = Annotated[
    float, Query(ge=0, allow_inf_nan=False, description="Minimum difference of the two rewards.")
]


@router.get("/rollouts")
def list_rollouts(
    job: JobDep,
    principal: Reader,
    database: DatabaseDep,
    selection: SelectionDep,
    after: After = None,
    limit: Limit = 20,
) -> Page[RolloutRead]:
    """Groups of completions, newest step first; `best` and `worst` order them by mean reward.

    Filters of completions select groups with at least one such completion.
    """
    found = service.page(database, job, selection, "group", limit=limit, after=after)
    read = [repository.rollout_read(entry) for entry in found]
    return page_of(shown_to(principal, database, read), limit)


@router.get("/rollouts/completions")
def list_completions(
    job: JobDep,
    principal: Reader,
    database: DatabaseDep,
    selection: SelectionDep,
    after: After = None,
    limit: Limit = 20,
) -> Page[CompletionRead]:
    """Single completions, newest step first; `best` and `worst` order them by their own reward."""
    found = service.page(database, job, selection, "completion", limit=limit, after=after)
    read = [repository.completion_read(entry) for entry in found]
    return page_of(shown_to(principal, database, read), limit)


@router.get("/rollouts/overview")
def describe_rollouts(job_id: JobId, principal: Reader, database: DatabaseDep) -> RolloutOverview:
    """The steps with rollouts, by split, and the parts of their rewards."""
    return service.overview(database, principal.tenant, job_id)


@router.get("/rollouts.jsonl", response_class=Response)
def export_rollouts(
    job: JobDep,
    database: DatabaseDep,
    parts: PartsDep,
    split: SplitQuery = None,
    filter: PropertyQuery = None,
) -> Response:
    """Groups in order of steps, one per line, with token ids."""
    selection = replace(parts, split=split, filter=filter)
    return _download(exports.all_lines(database, job, selection), f"{job.id}-rollouts.jsonl")


@router.get("/rollouts/sft.jsonl", response_class=Response)
def export_best_answers(
    source: SourceDep, min_reward: MinReward = 1.0, per_prompt: PerPrompt = 1
) -> Response:
    """The best complete answers to each prompt, as a file for `supervised` training."""
    lines = exports.best_answers(source, min_reward=min_reward, per_prompt=per_prompt)
    return _download(lines, f"{source.job.id}-sft.jsonl")


@router.get("/rollouts/dpo.jsonl", response_class=Response)
def export_preferences(source: SourceDep, min_margin: MinMargin = 0.0, per_prompt: PerPrompt = 1) -> Response:
    """The best and worst answers to each prompt with their margin, in TRL's preference format."""
    lines = exports.preferences(source, min_margin=min_margin, per_prompt=per_prompt)
    return _download(lines, f"{source.job.id}-dpo.jsonl")


@router.post("/rollouts/rescore")
def rescore_rollouts(
    job_id: JobId, request: RescoreRequest, principal: Reader, rescore: RescoreDep
) -> RescoreRead:
    """Another grader's scores of these rollouts, and how they would change the advantages.

    Scoring may take 40 seconds; a grader that calls a server may score 64 completions. The job does not
    change.
    """
    return rescore.run(principal.tenant, job_id, request)


def _download(lines: Iterator[str], filename: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{filename}"'}
    return StreamingResponse(lines, media_type="application/jsonl", headers=headers)


def _listed(parts: list[str] | None) -> tuple[str, ...]:
    names = (name.strip() for given in parts or () for name in given.split(","))
    return tuple(dict.fromkeys(name for name in names if name))
