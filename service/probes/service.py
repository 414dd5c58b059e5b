"""Probes: rows of the jobs' queue whose engine samples and scores, and trains nothing.

Boundary: decides and opens transactions. A probe is made, claimed, leased and swept as a job is
(`jobs/creation.py`, `jobs/queue.py`); what its counts mean is `verdict.py`'s.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from grpo_engine.config.job import Method, Reinforcement
from grpo_engine.contract.events import Probed
from service.jobs.api.responses import read_jobs
from service.jobs.model.methods import parsed_method
from service.jobs.model.schemas import JobRead
from service.jobs.model.states import JobState, already
from service.jobs.store import queue, repository
from service.jobs.store.transitions import IS_PROBE
from service.platform import audit
from service.platform.db import Database
from service.platform.errors import InvalidRequest, NotFound
from service.platform.principal import Principal
from service.platform.tables.core import Job, Rollout
from service.probes.schemas import AdviceRead, ProbeRead, ProbeResult
from service.probes.verdict import judge
from service.rollouts.repository import RolloutEntry, rollout_read
from service.rollouts.schemas import RolloutRead
from service.web.pagination import unknown_cursor

SHOWN_GROUPS = 6


@dataclass(frozen=True)
class Probes:
    """The probes of one deployment."""

    database: Database
    max_running: int | None
    """On workers at once, of one tenant's jobs and probes."""

    def page(self, tenant: str, *, after: str | None, limit: int) -> list[ProbeRead]:
        """Newest first, `limit` + 1 at most, without their groups."""
        with self.database.reading() as session:
            last = None if after is None else repository.find_probe(session, tenant, after)
            if after is not None and last is None:
                raise unknown_cursor(after)
            probes = repository.page_of_jobs(session, tenant, after=last, limit=limit, of=IS_PROBE)
            shown = read_jobs(session, tenant, probes, self.max_running)
            return [_probe_read(row, job) for row, job in zip(probes, shown, strict=True)]

    def read(self, tenant: str, probe_id: str) -> ProbeRead:
        with self.database.reading() as session:
            return self._read(session, _require(session, tenant, probe_id))

    def cancel(self, principal: Principal, probe_id: str, request_id: str) -> ProbeRead:
        """Cancels the probe: at once if no worker holds it, otherwise when the worker learns of it."""
        with self.database.transaction() as session:
            probe = _require(session, principal.tenant, probe_id)
            try:
                queue.request_cancel(session, principal.tenant, probe_id, of=IS_PROBE)
            except queue.WrongState as error:
                message = f"The probe {already(error.current)}."
                raise InvalidRequest(message, code="invalid_state") from error
            audit.record(session, principal, "probe.cancel", probe_id, request_id)
            session.refresh(probe)
            return self._read(session, probe)

    def _read(self, session: Session, probe: Job) -> ProbeRead:
        (shown,) = read_jobs(session, probe.tenant, [probe], self.max_running)
        read = _probe_read(probe, shown)
        return read if read.result is None else read.model_copy(update={"groups": _groups(session, probe.id)})


def _require(session: Session, tenant: str, probe_id: str) -> Job:
    probe = repository.find_probe(session, tenant, probe_id)
    if probe is None:
        raise NotFound(f"There is no probe {probe_id}.", param="probe_id", code="probe_not_found")
    return probe


def _probe_read(probe: Job, shown: JobRead) -> ProbeRead:
    """The job's own answer, as far as it fits, and what is a probe's but its groups."""
    asked = probe.probe or {}
    common = shown.model_dump(include=set(ProbeRead.model_fields) - {"object"})
    done = shown.status == JobState.SUCCEEDED.value
    result = result_of(asked["result"], parsed_method(probe.method)) if done else None
    return ProbeRead(**common, prompts=asked["prompts"], result=result, groups=[])


def result_of(counts: dict[str, Any], method: Method) -> ProbeResult:
    """The stored counts as rates, with the verdict on them."""
    facts = Probed.model_validate(counts)
    assert isinstance(method, Reinforcement), "only reinforcement jobs are probed"
    verdict, scored = (
        judge(facts, method.reinforcement.hyperparameters),
        facts.completions - facts.grader_errors,
    )
    return ProbeResult(
        can_learn=verdict.can_learn,
        sentence=verdict.sentence,
        advice=[AdviceRead(**asdict(each)) for each in verdict.advice],
        prompts=facts.prompts,
        completions=facts.completions,
        pass_rate=facts.passed / scored if scored else None,
        mean_reward=facts.mean_reward,
        signal_share=facts.groups_with_signal / facts.prompts,
        truncated_share=facts.truncated / facts.completions,
        grader_errors=facts.grader_errors,
        grader_error=facts.grader_error,
        mean_completion_tokens=facts.completion_tokens / facts.completions,
        tokens_per_second=facts.completion_tokens / max(facts.sample_seconds, 1e-9),
        peak_memory_bytes=facts.peak_memory_bytes,
    )


def _groups(session: Session, probe_id: str) -> list[RolloutRead]:
    query = select(Rollout).where(Rollout.job_id == probe_id)
    query = query.order_by(Rollout.has_signal.desc(), Rollout.step, Rollout.position).limit(SHOWN_GROUPS)
    return [rollout_read(RolloutEntry(row)) for row in session.scalars(query)]
