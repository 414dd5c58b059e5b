"""The engine's events → rows: metrics, rollouts, evaluations, warnings, history. Fenced and idempotent.

One UPDATE moves `engine_sequence` from the value that was read, under the fence; events up to it are
ignored, and the first write of a metric or rollout wins.
"""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from grpo_engine.contract import events as engine
from service.jobs.intake import costs
from service.jobs.model.states import JobState
from service.jobs.progress import evaluations
from service.jobs.progress.metrics import add_metrics
from service.jobs.store import history
from service.jobs.store.transitions import JOBS, holds
from service.platform.db import insert_for, storable
from service.platform.tables.core import Job, Rollout

MAX_WARNINGS = 100


def record_events(
    session: Session,
    job_id: str,
    fence: int,
    events: Sequence[engine.Event],
    rollouts: Sequence[tuple[int, dict[str, Any]]] = (),
) -> int | None:
    """Store a batch in order and return how many events were new.

    `rollouts`: `rollout_rows` of the same events, made before the transaction. None: the fence is stale, and
    nothing was written.
    """
    held = select(Job).where(holds(job_id, fence)).with_for_update()
    job = session.scalars(held.execution_options(populate_existing=True)).one_or_none()
    if job is None:
        return None
    batch = _Batch(job)
    new = [event for event in events if event.sequence > job.engine_sequence]
    for event in new:
        batch.add(event)
    if new and not _advance(session, job, new[-1].sequence, batch.values):
        return None
    if batch.metrics:
        add_metrics(session, job_id, batch.metrics)
    if groups := [row for sequence, row in rollouts if sequence > job.engine_sequence]:
        session.execute(insert_for(session)(Rollout).on_conflict_do_nothing(), groups)
    if batch.entries:
        history.append(session, job_id, *batch.entries)
    return len(new)


def rollout_rows(job_id: str, events: Sequence[engine.Event]) -> list[tuple[int, dict[str, Any]]]:
    """(Event's sequence, row) of each recorded group. Rows are large: call this outside a transaction."""
    return [
        (
            event.sequence,
            {
                "job_id": job_id,
                "split": event.split,
                "step": event.step,
                "position": position,
                "has_signal": group.has_signal,
                "data": storable(group.model_dump(mode="json") | ({"set": event.name} if event.name else {})),
            },
        )
        for event in events
        if isinstance(event, engine.RolloutsRecorded)
        for position, group in enumerate(event.groups, event.first)
    ]


def _advance(session: Session, job: Job, sequence: int, values: dict[str, Any]) -> bool:
    moved = session.execute(
        update(JOBS)
        .where(holds(job.id, job.fence), JOBS.c.engine_sequence == job.engine_sequence)
        .values(engine_sequence=sequence, **values)
        .returning(JOBS.c.id)
    )
    return moved.scalar_one_or_none() is not None


BETWEEN_STEPS = {"training", "evaluating"}
"""Phases that alternate constantly. The history gets only the first change, the job's row every change."""
STARTED = "Training "
"""Prefix of the history's message whose data describes the engine."""
SKIPPED: dict[engine.SkipReason, str] = {
    "nothing_scored": "no completion could be scored",
    "no_signal": "no group had two different rewards",
    "all_masked": "every completion was cut, and cut ones are masked",
    "nothing_to_distil": "no failed attempt had any feedback",
}


class _Batch:
    """The changes of a batch of events, gathered before they are written."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.total_steps = job.total_steps
        self.values: dict[str, Any] = {}
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.entries: list[history.HistoryEntry] = []

    def add(self, event: engine.Event) -> None:
        match event:
            case engine.Started():
                self._started(event)
            case engine.PhaseChanged():
                self._phase(event)
            case engine.StepFinished() | engine.StepSkipped():
                self._step(event)
            case engine.Evaluated():
                self._evaluated(event)
            case engine.Warned():
                self._warned(event)
            case engine.Probed():
                result = event.model_dump(mode="json", exclude={"type", "sequence", "at"})
                self.values["probe"] = {**(self.job.probe or {}), "result": storable(result)}
            case _:
                pass  # `rollout_rows` makes the rows of rollouts; the worker itself handles the others

    def _entry(self, type_: str, message: str, data: dict[str, Any], level: str = "info") -> None:
        self.entries.append(
            history.HistoryEntry(type_, storable(message), level, storable(data), self.job.fence)
        )

    @property
    def _actual(self) -> costs.Cost | None:
        return self.values.get("actual", self.job.actual)

    def _phase(self, event: engine.PhaseChanged) -> None:
        before = self.values.get("phase", self.job.phase)
        if self.job.state != JobState.RUNNING.value or event.phase == before:
            return
        self.values["phase"] = event.phase
        if event.step == 0 or {before, event.phase} != BETWEEN_STEPS:
            message = f"The engine is {event.phase}."
            entry = history.status(JobState.RUNNING, message, self.job.fence, phase=event.phase)
            self.entries.append(entry)

    def _started(self, event: engine.Started) -> None:
        self.total_steps = self.values["total_steps"] = event.total_steps
        self.values["actual"] = costs.with_start(self._actual, event)
        how = f"resumed from step {event.resumed_from_step}" if event.resumed_from_step else "started"
        data = event.model_dump(mode="json", exclude={"type", "sequence", "at"})
        self._entry(
            "message", f"{STARTED}{how} on {event.device} ({event.dtype}, sampler {event.sampler}).", data
        )

    def _step(self, event: engine.StepFinished | engine.StepSkipped) -> None:
        self.values["step"] = max(event.step, self.values.get("step", self.job.step))
        self.metrics.append((event.step, event.metrics))
        self.values["actual"] = costs.with_step(self._actual, event)
        data: dict[str, Any] = {"step": event.step, "total_steps": self.total_steps, **event.metrics}
        data |= evaluations.in_openai_names(event.metrics, "train")
        if isinstance(event, engine.StepSkipped):
            text = f"Step {event.step}/{self.total_steps} skipped: {SKIPPED[event.reason]}."
            self._entry("metrics", text, data | {"skipped": event.reason}, level="warn")
        else:
            text = f"Step {event.step}/{self.total_steps}: {_headline(event.metrics)}"
            self._entry("metrics", text, data)

    def _evaluated(self, event: engine.Evaluated) -> None:
        changed = evaluations.with_event(self.values.get("evaluation", self.job.evaluation), event)
        if changed is None:
            return
        self.values["evaluation"] = changed
        prefixed = evaluations.metrics(event)
        if event.step:  # steps count from 1; step 0 is the baseline
            self.metrics.append((event.step, prefixed))
        data = {"step": event.step, "total_steps": self.total_steps, **prefixed}
        shown = _headline(event.metrics) + (f"; change {event.verdict.text}" if event.verdict else "")
        if event.name == engine.VALIDATION:
            data |= evaluations.in_openai_names(event.metrics, "full_valid")
            self._entry("metrics", f"Evaluation after step {event.step}: {shown}", data)
        else:
            self._entry("message", f"Retention set {event.name} after step {event.step}: {shown}", data)
        if (conclusion := evaluations.conclusion(event)) is not None:
            self._entry("message", *conclusion)

    def _warned(self, event: engine.Warned) -> None:
        warning = storable({"code": event.code, "message": event.message})
        known = self.values.get("warnings", self.job.warnings)
        if event.step is not None and warning in known:
            return  # a resumed engine repeats the steps since its checkpoint
        if warning not in known and len(known) < MAX_WARNINGS:
            self.values["warnings"] = [*known, warning]
        data = {"code": event.code} | ({} if event.step is None else {"step": event.step})
        self._entry("message", event.message, data, level="warn")


def _headline(metrics: dict[str, float]) -> str:
    shown = [f"{name}={metrics[name]:.4g}" for name in ("reward", "kl", "loss") if name in metrics]
    return ", ".join(shown) or "done"
