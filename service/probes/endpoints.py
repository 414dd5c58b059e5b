"""`/v1/fine_tuning/probes`."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Response

from service.jobs.api.dependencies import PreflightDep, SenderDep, WakeupsDep
from service.jobs.api.endpoints_logs import LOG_RESPONSES, LogPage, LogQueryDep
from service.jobs.intake import creation
from service.jobs.model.schemas import ProbeCreate
from service.probes.schemas import ProbeRead
from service.probes.service import Probes
from service.web.auth import Reader, Writer
from service.web.pagination import After, Limit, Page, page_of

router = APIRouter(prefix="/v1/fine_tuning/probes", tags=["fine-tuning"])


ProbeId = Annotated[str, Path(description="Id of the probe, `ftprobe-…`.")]
ProbesDep = Annotated[Probes, Depends()]


@router.post("")
def create_probe(
    body: ProbeCreate,
    sender: SenderDep,
    preflight: PreflightDep,
    wakeups: WakeupsDep,
    probes: ProbesDep,
    response: Response,
) -> ProbeRead:
    """Sample the model on some of the job's prompts and report, before training, whether GRPO can learn.

    The body is a job's, with the same checks. A worker runs the probe; it counts as an unfinished job.
    """
    created = creation.create_job(preflight, wakeups, creation.JobRequest(sender, body))
    response.headers.update(created.headers)
    return probes.read(sender.principal.tenant, created.job_id)


@router.get("")
def list_probes(
    principal: Reader, probes: ProbesDep, after: After = None, limit: Limit = 20
) -> Page[ProbeRead]:
    """Newest first, with results but without groups."""
    return page_of(probes.page(principal.tenant, after=after, limit=limit), limit)


@router.get("/{probe_id}")
def retrieve_probe(probe_id: ProbeId, principal: Reader, probes: ProbesDep) -> ProbeRead:
    """The probe's state; after success, its result and some of its groups."""
    return probes.read(principal.tenant, probe_id)


@router.get("/{probe_id}/logs", response_model=LogPage, responses=LOG_RESPONSES)
def list_probe_logs(
    probe_id: ProbeId, principal: Reader, probes: ProbesDep, query: LogQueryDep
) -> LogPage | Response:
    """Lines that the probe's engine has printed, in the form of a job's log."""
    probes.read(principal.tenant, probe_id)
    return query.answer(probes.database, probe_id)


@router.post("/{probe_id}/cancel")
def cancel_probe(probe_id: ProbeId, principal: Writer, probes: ProbesDep) -> ProbeRead:
    """End the probe without a result."""
    return probes.cancel(principal, probe_id)
