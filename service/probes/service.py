"""Probes: rows of the jobs' queue whose engine samples and scores, and trains nothing.

Boundary: decides and opens transactions. A probe is created, claimed, leased and swept like a job.
"""

from dataclasses import dataclass

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from grpo_engine.config.job import Reinforcement
from grpo_engine.contract.events import Probed
from service.jobs.api.responses import read_jobs
from service.jobs.model.methods import parsed_method
from service.jobs.model.states import JobState, already
from service.jobs.store import queue, repository
from service.jobs.store.transitions import IS_PROBE
from service.platform import audit
from service.platform.errors import InvalidRequest, NotFound
from service.platform.pages import newest_page
from service.platform.principal import Principal
from service.platform.tables.core import Job, Rollout
from service.probes.schemas import ProbeRead, ProbeResult
from service.probes.verdict import judge
from service.rollouts.repository import RolloutEntry, rollout_read
from service.rollouts.schemas import RolloutRead
from service.web.dependencies import DatabaseDep, SettingsDep

SHOWN_GROUPS = 6


@dataclass(frozen=True)
class Probes:
    """The probes of one deployment."""

    database: DatabaseDep
    settings: SettingsDep

    def page(self, tenant: str, *, after: str | None, limit: int) -> list[ProbeRead]:
        """Newest first, `limit` + 1 at most, without their groups. Raises NotFound for an unknown `after`."""
        with self.database.reading() as session:
            mine = and_(IS_PROBE, Job.tenant == tenant)
            return self._shown(session, tenant, newest_page(session, Job, mine, after=after, limit=limit))

    def read(self, tenant: str, probe_id: str) -> ProbeRead:
        """The probe with its groups. Raises NotFound."""
        with self.database.reading() as session:
            return self._with_groups(session, _require(session, tenant, probe_id))

    def cancel(self, principal: Principal, probe_id: str) -> ProbeRead:
        """Cancel the probe: at once if no worker holds it, otherwise with the worker's next heartbeat."""
        with self.database.transaction() as session:
            probe = _require(session, principal.tenant, probe_id)
            try:
                queue.request(session, principal.tenant, probe_id, "cancel", of=IS_PROBE)
            except queue.WrongState as error:
                message = f"The probe {already(error.current)}."
                raise InvalidRequest(message, code="invalid_state") from error
            audit.record(session, principal, "probe.cancel", probe_id)
            session.refresh(probe)
            return self._with_groups(session, probe)

    def _with_groups(self, session: Session, probe: Job) -> ProbeRead:
        (shown,) = self._shown(session, probe.tenant, [probe])
        if shown.result is not None:
            shown.groups = _groups(session, probe.id)
        return shown

    def _shown(self, session: Session, tenant: str, probes: list[Job]) -> list[ProbeRead]:
        """The responses for probes, with results but without groups."""
        jobs = read_jobs(session, tenant, probes, self.settings)
        common = set(ProbeRead.model_fields) - {"object"}
        return [
            ProbeRead(
                **job.model_dump(include=common),
                prompts=(probe.probe or {})["prompts"],
                result=_result_of(probe) if job.status == JobState.SUCCEEDED.value else None,
                groups=[],
            )
            for probe, job in zip(probes, jobs, strict=True)
        ]


def _require(session: Session, tenant: str, probe_id: str) -> Job:
    probe = repository.find_probe(session, tenant, probe_id)
    if probe is None:
        raise NotFound(f"There is no probe {probe_id}.", param="probe_id", code="probe_not_found")
    return probe


def _result_of(probe: Job) -> ProbeResult:
    """The stored counts as rates, with the verdict on them."""
    facts = Probed.model_validate((probe.probe or {})["result"])
    method = parsed_method(probe.method)
    assert isinstance(method, Reinforcement), "only reinforcement jobs are probed"
    settings = method.reinforcement.hyperparameters
    verdict = judge(facts, settings)
    scored = facts.completions - facts.grader_errors
    return ProbeResult(
        can_learn=verdict.can_learn,
        sentence=verdict.sentence,
        advice=list(verdict.advice),
        prompts=facts.prompts,
        completions=facts.completions,
        pass_rate=facts.passed / scored if scored else None,
        mean_reward=facts.mean_reward,
        temperature=settings.temperature,
        greedy_pass_rate=facts.greedy_passed / facts.greedy_completions if facts.greedy_completions else None,
        greedy_mean_reward=facts.greedy_mean_reward,
        signal_share=facts.groups_with_signal / facts.prompts,
        truncated_share=facts.truncated / facts.completions,
        grader_errors=facts.grader_errors,
        grader_error=facts.grader_error,
        mean_completion_tokens=facts.completion_tokens / facts.completions,
        mean_turns=facts.turns / facts.completions if facts.turns else None,
        tokens_per_second=facts.completion_tokens / max(facts.sample_seconds, 1e-9),
        peak_memory_bytes=facts.peak_memory_bytes,
    )


def _groups(session: Session, probe_id: str) -> list[RolloutRead]:
    query = select(Rollout).where(Rollout.job_id == probe_id)
    query = query.order_by(Rollout.has_signal.desc(), Rollout.step, Rollout.position).limit(SHOWN_GROUPS)
    return [rollout_read(RolloutEntry(row)) for row in session.scalars(query)]
