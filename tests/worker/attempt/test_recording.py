"""Events → rows: idempotent, fenced, first write wins; on both databases."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from grpo_engine.contract.events import (
    MAX_LINE_BYTES,
    Evaluated,
    Event,
    PhaseChanged,
    RolloutsRecorded,
    StepFinished,
    StepSkipped,
    Warned,
)
from grpo_engine.contract.records import CompletionRecord, FinishReason, GroupRecord
from service.jobs.progress import publishing
from service.jobs.progress.recording import record_events, rollout_rows
from service.jobs.store import history
from service.platform.db import Database
from service.platform.tables.core import Checkpoint, JobEvent, Metric, Rollout
from tests.threads import at_once
from tests.worker.jobs import cancel, checkpoint, claimed, insert_job, read_job
from worker.attempt.event_reader import EventReader


def record(database: Database, job_id: str, events: Sequence[Event], fence: int = 1) -> int | None:
    rollouts = rollout_rows(job_id, events)
    with database.transaction() as session:
        return record_events(session, job_id, fence, events, rollouts)


def step(number: int, sequence: int, **metrics: float) -> StepFinished:
    return StepFinished(sequence=sequence, step=number, metrics={"reward": 0.5} | metrics)


def history_of(database: Database, job_id: str, type_: str) -> list[JobEvent]:
    query = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.type == type_)
    with database.reading() as session:
        return list(session.scalars(query.order_by(JobEvent.sequence)))


def test_a_repeated_batch_changes_nothing(database: Database, job_id: str) -> None:
    batch = [step(1, 1), step(2, 2)]
    assert record(database, job_id, batch) == 2
    assert record(database, job_id, batch) == 0
    assert record(database, job_id, [*batch, step(3, 3)]) == 1
    assert len(history_of(database, job_id, "metrics")) == 3
    assert (read_job(database, job_id).engine_sequence, read_job(database, job_id).step) == (3, 3)


def test_a_published_step_never_changes(database: Database, job_id: str) -> None:
    record(database, job_id, [step(1, 1, loss=1.0)])
    record(database, job_id, [step(1, 2, loss=9.0)])
    with database.reading() as session:
        assert session.scalars(select(Metric)).one().values == {"reward": 0.5, "loss": 1.0}


def test_a_phase_change_is_one_status_event(database: Database, job_id: str) -> None:
    phases = ["loading", "training", "training"]
    record(database, job_id, [PhaseChanged(sequence=n, phase=p) for n, p in enumerate(phases, start=1)])
    entries = history_of(database, job_id, "status")[-2:]
    assert [entry.data for entry in entries] == [
        {"status": "running", "state": "running", "phase": "loading"},
        {"status": "running", "state": "running", "phase": "training"},
    ]
    assert [entry.message for entry in entries] == ["The engine is loading.", "The engine is training."]


def test_a_stale_fence_records_nothing(database: Database, job_id: str) -> None:
    assert record(database, job_id, [step(1, 1)], fence=0) is None
    assert read_job(database, job_id).engine_sequence == 0
    with database.reading() as session:
        assert session.scalars(select(Metric)).all() == []


def test_a_metrics_event_has_openai_names_too(database: Database, job_id: str) -> None:
    record(database, job_id, [step(1, 1, loss=0.25)])
    (entry,) = history_of(database, job_id, "metrics")
    assert entry.message == "Step 1/10: reward=0.5, loss=0.25"
    assert entry.data == {
        "step": 1,
        "total_steps": 10,
        "reward": 0.5,
        "loss": 0.25,
        "train_mean_reward": 0.5,
        "train_loss": 0.25,
    }


def test_a_skipped_step_has_its_metrics_and_a_warning(database: Database, job_id: str) -> None:
    record(database, job_id, [StepSkipped(sequence=1, step=1, reason="no_signal", metrics={"reward": 0.0})])
    (entry,) = history_of(database, job_id, "metrics")
    assert (entry.level, entry.data["skipped"]) == ("warn", "no_signal")
    with database.reading() as session:
        assert session.scalars(select(Metric.step)).all() == [1]


def test_first_best_and_last_evaluations_are_kept(database: Database, job_id: str) -> None:
    rewards = [0.2, 0.9, 0.4]
    events = [Evaluated(sequence=n + 1, step=n, metrics={"reward": r}) for n, r in enumerate(rewards)]
    record(database, job_id, events)
    assert read_job(database, job_id).evaluation == {
        "baseline": {"step": 0, "reward": 0.2},
        "best": {"step": 1, "reward": 0.9},
        "last": {"step": 2, "reward": 0.4},
    }
    entry = history_of(database, job_id, "metrics")[1]
    assert (entry.data["full_valid_mean_reward"], entry.data["eval/reward"]) == (0.9, 0.9)


def test_an_evaluation_repeated_by_a_resumed_engine_is_reported_once(database: Database, job_id: str) -> None:
    record(database, job_id, [Evaluated(sequence=n + 1, step=n, metrics={"reward": 0.5}) for n in (0, 5)])
    record(database, job_id, [Evaluated(sequence=7, step=5, metrics={"reward": 0.9})])
    entries = history_of(database, job_id, "metrics")
    assert [entry.data["step"] for entry in entries] == [0, 5]
    assert read_job(database, job_id).evaluation["best"] == {"step": 0, "reward": 0.5}
    record(database, job_id, [Evaluated(sequence=8, step=10, metrics={"reward": 0.9})])
    assert read_job(database, job_id).evaluation["best"] == {"step": 10, "reward": 0.9}


def test_rollouts_of_recorded_events_are_not_stored_again(database: Database, job_id: str) -> None:
    record(database, job_id, [step(1, 1), step(2, 2)])
    group = GroupRecord(row=3, prompt="p", completions=(), has_signal=False)
    record(database, job_id, [RolloutsRecorded(sequence=n, step=n, groups=(group,)) for n in (2, 3)])
    with database.reading() as session:
        assert session.scalars(select(Rollout.step)).all() == [3]


def test_the_same_warning_is_kept_once(database: Database, job_id: str) -> None:
    record(database, job_id, [Warned(sequence=n, step=7, code="slow", message="slow disk") for n in (1, 2)])
    assert read_job(database, job_id).warnings == [{"code": "slow", "message": "slow disk"}]
    assert [one.data for one in history_of(database, job_id, "message")] == [{"code": "slow", "step": 7}]


def test_evaluations_change_the_phase_and_only_the_first_is_reported(database: Database, job_id: str) -> None:
    changes = [("training", 0), ("evaluating", 0), ("training", 0), ("evaluating", 5), ("training", 5)]
    seen = []
    for number, (phase, step) in enumerate(changes, start=1):
        record(database, job_id, [PhaseChanged(sequence=number, phase=phase, step=step)])
        seen.append(read_job(database, job_id).phase)
    assert seen == [phase for phase, _ in changes]
    entries = [entry.data["phase"] for entry in history_of(database, job_id, "status")]
    assert entries[-3:] == ["training", "evaluating", "training"]


def test_the_phase_of_a_cancelling_job_stays_cancelling(database: Database, job_id: str) -> None:
    record(database, job_id, [PhaseChanged(sequence=1, phase="training")])
    assert read_job(database, job_id).phase == "training"
    cancel(database, job_id)
    record(database, job_id, [PhaseChanged(sequence=2, phase="saving")])
    assert read_job(database, job_id).phase == "cancelling"


def test_any_model_output_can_be_stored(database: Database, job_id: str) -> None:
    completion = CompletionRecord(
        text="a\x00b",
        token_ids=(1,),
        reward=None,
        advantage=0.0,
        finish_reason=FinishReason.LENGTH,
        policy_version=0,
    )
    group = GroupRecord(row=3, prompt="p", completions=(completion,), has_signal=False)
    record(database, job_id, [RolloutsRecorded(sequence=1, step=1, groups=(group, group))])
    with database.reading() as session:
        rows = session.scalars(select(Rollout).order_by(Rollout.position)).all()
    assert [row.position for row in rows] == [0, 1]
    assert rows[0].data["completions"][0]["text"] == "a\ufffdb"


def test_an_event_with_nan_is_dropped() -> None:
    with pytest.raises(ValidationError):
        StepFinished(step=1, metrics={"reward": float("nan")})


def publish(database: Database, job_id: str, step: int, fence: int = 1) -> bool:
    with database.transaction() as session:
        return publishing.publish_checkpoint(session, checkpoint(job_id, step, fence))


def test_a_new_checkpoint_clears_the_failures(database: Database) -> None:
    job_id = claimed(database, failures=2).id
    assert publish(database, job_id, 5)
    job = read_job(database, job_id)
    assert (job.failures, job.checkpoint_step) == (0, 5)


def test_a_checkpoint_under_a_stale_fence_is_refused(database: Database, job_id: str) -> None:
    assert not publish(database, job_id, 5, fence=0)
    with database.reading() as session:
        assert session.scalars(select(Checkpoint)).all() == []


def test_the_best_checkpoint_is_never_retired(database: Database, job_id: str) -> None:
    record(database, job_id, [Evaluated(sequence=1, step=2, metrics={"reward": 0.9})])
    for number in (1, 2, 3, 4):
        publish(database, job_id, number)
    with database.transaction() as session:
        keys = publishing.retire_checkpoints(session, job_id, 1, keep=1)
    assert keys == ["s-3", "a-3", "s-1", "a-1"]
    with database.reading() as session:
        assert session.scalars(select(Checkpoint.step).order_by(Checkpoint.step)).all() == [2, 4]


def test_a_withdrawn_checkpoint_can_be_published_again(database: Database, job_id: str) -> None:
    publish(database, job_id, 5)
    publish(database, job_id, 10)
    with database.transaction() as session:
        publishing.withdraw_checkpoint(session, job_id, 1, 10, "torn")
    assert read_job(database, job_id).checkpoint_step == 5
    publish(database, job_id, 10)
    assert read_job(database, job_id).checkpoint_step == 10
    with database.reading() as session:
        assert [row.step for row in publishing.usable_checkpoints(session, job_id)] == [10, 5]


def test_a_withdrawn_checkpoint_is_retired_before_an_older_step(database: Database, job_id: str) -> None:
    """After a restart, the run's new checkpoints have smaller steps than the damaged ones."""
    publish(database, job_id, 10)
    with database.transaction() as session:
        publishing.withdraw_checkpoint(session, job_id, 1, 10, "torn")
    publish(database, job_id, 5)
    with database.transaction() as session:
        assert publishing.retire_checkpoints(session, job_id, 1, keep=1) == ["a-10"]
    with database.reading() as session:
        assert [row.step for row in publishing.usable_checkpoints(session, job_id)] == [5]


def test_concurrent_writers_leave_no_gaps_in_the_history(database: Database) -> None:
    job_id = insert_job(database)

    def write(_number: int) -> None:
        for _ in range(10):
            with database.transaction() as session:
                history.append(session, job_id, *[history.HistoryEntry("message", "m")] * 3)

    at_once(3, write)
    with database.reading() as session:
        numbers = session.scalars(select(JobEvent.sequence).order_by(JobEvent.sequence)).all()
    assert list(numbers) == list(range(1, 91))


def line(number: int) -> bytes:
    return step(number, number).model_dump_json().encode() + b"\n"


def test_only_complete_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reader = EventReader(path)
    assert reader.read() == []
    path.write_bytes(line(1) + line(2)[:20])
    assert [event.sequence for event in reader.read()] == [1]
    assert reader.read() == []
    path.write_bytes(line(1) + line(2))
    assert [event.sequence for event in reader.read()] == [2]


def test_lines_are_read_in_batches(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(line(number) for number in range(1, 20)))
    reader = EventReader(path, batch_bytes=7)
    read: list[int] = []
    while events := reader.read():
        read.extend(event.sequence for event in events)
    assert read == list(range(1, 20))


def test_garbage_and_overlong_lines_are_counted_and_dropped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(line(1) + b"\xff\xfe\n" + b"x" * (MAX_LINE_BYTES + 5) + b"\n" + line(2))
    reader = EventReader(path)
    read: list[int] = []
    while events := reader.read():
        read.extend(event.sequence for event in events)
    assert (read, reader.num_dropped) == ([1, 2], 2)
