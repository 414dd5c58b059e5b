"""What an engine prints is in its job's log: in order, masked, bounded, and once, whatever fails."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import event, select
from sqlalchemy import text as sql
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from examples.tiny_model import make_model
from service.jobs.progress import logs
from service.jobs.progress.logs import LogLineRead
from service.platform.db import Database
from service.platform.tables.logs import LogPiece
from tests.support.servers import wait_until
from tests.worker.jobs import cancel, insert_job, read_job
from tests.worker.jobs import method as small_method
from tests.worker.outcomes import in_background, run_until_idle
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker
from worker.launchers import local

Submit = Callable[..., str]
STARTS = "fake engine starts"
NOTE_LINES_AT_END = """
CREATE TRIGGER ended AFTER UPDATE OF state ON jobs WHEN new.state IN ('succeeded', 'failed')
BEGIN INSERT INTO seen SELECT new.id, max(sequence) FROM job_logs WHERE job_id = new.id; END
"""


@pytest.fixture
def database_url(request: pytest.FixtureRequest, sqlite_url: str) -> str:
    """SQLite, but PostgreSQL where the database matters."""
    needs = "postgres_url" in request.fixturenames
    return str(request.getfixturevalue("postgres_url")) if needs else sqlite_url


def lines_of(database: Database, job_id: str) -> list[LogLineRead]:
    lines: list[LogLineRead] = []
    with database.reading() as session:
        while page := logs.lines_after(session, job_id, lines[-1].sequence if lines else 0, 5000):
            lines += page
    return lines


def texts_of(database: Database, job_id: str) -> list[str]:
    return [line.text for line in lines_of(database, job_id)]


def test_lines_are_stored_while_the_engine_runs(worker: Worker, database: Database, submit: Submit) -> None:
    faults: dict[str, object] = {"*": {"step_seconds": 0.05, "prints": "first\nsecond\n"}}
    job_id = submit(faults, hyperparameters={"n_steps": 10_000})
    thread = in_background(worker)
    wait_until(lambda: len(texts_of(database, job_id)) == 3, what="the lines are stored")
    assert read_job(database, job_id).state == "running"
    cancel(database, job_id)
    thread.join()
    assert texts_of(database, job_id) == [STARTS, "first", "second"]


def test_the_real_engine_s_log_has_its_steps_and_the_traceback_of_its_error(
    worker: Worker, database: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(worker.settings.models_dir / "tiny", hidden=32, layers=1, seed=3)
    monkeypatch.setenv("GRPO_FAULT", "step.trained:raise")
    real = replace(worker, settings=worker.settings.model_copy(update={"engine_module": "grpo_engine"}))
    job_id = submit(hyperparameters={"n_steps": 2, "max_completion_tokens": 4, "lora": {"rank": 2}})
    run_job(real)
    texts = texts_of(database, job_id)
    assert [text for text in texts if "step 1" in text]
    assert texts.index("Traceback (most recent call last):") < texts.index(
        "grpo_engine.process.fault_points.InjectedFault: step.trained"
    )


def test_a_python_grader_s_prints_are_in_the_log_with_its_name(
    worker: Worker, database: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(worker.settings.models_dir / "tiny", hidden=32, layers=1, seed=3)
    monkeypatch.setenv("HF_TOKEN", "hf_private")
    real = replace(worker, settings=worker.settings.model_copy(update={"engine_module": "grpo_engine"}))
    source = (
        "def grade(sample, item):\n"
        "    print('expected', item['answer'], 'hf_private\\n12:00:00 step 9: \x1b[31mreward 1')\n"
        "    return 1\n"
    )
    method = small_method(n_steps=1, max_completion_tokens=4, lora={"rank": 2}).model_dump(mode="json")
    method["reinforcement"]["grader"] = {"type": "python", "name": "own", "source": source}
    job_id = submit(method=method, required_capabilities="python_graders")
    run_job(real)
    assert read_job(database, job_id).state == "succeeded"
    shown = [text for text in texts_of(database, job_id) if text.startswith("[grader")]
    assert re.fullmatch(r"\[grader own\] expected \d+ \*\*\*", shown[0])
    assert shown[1] == "[grader own] 12:00:00 step 9: \ufffd[31mreward 1"
    assert not [text for text in texts_of(database, job_id) if text.startswith("12:00:00")]


def test_secrets_and_control_characters_are_not_stored(
    worker: Worker, database: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch, postgres_url: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_private")
    printed = "key hf_private\n\x1b[31mred\x1b[0m \x00\x07<b>\n 10%\r 20%\rdone\r\npostgresql://a:hidden@b/c\n\ud7ff\xe9"
    job_id = submit({"*": {"prints": printed}})
    run_job(worker)
    expected = [STARTS, "key ***", "red \ufffd\ufffd<b>", "done", "postgresql://a:***@b/c", "\ud7ff\xe9"]
    assert texts_of(database, job_id) == expected


def test_lines_of_two_attempts_follow_each_other(worker: Worker, database: Database, submit: Submit) -> None:
    job_id = submit({"1": {"prints": "a\nb\n", "die_at": 7}, "2": {"prints": "c\n"}})
    run_until_idle(worker, database)
    lines = lines_of(database, job_id)
    assert read_job(database, job_id).state == "succeeded"
    assert [line.text for line in lines] == [STARTS, "a", "b", STARTS, "c"]
    assert [line.attempt for line in lines] == [1, 1, 1, 2, 2]
    assert [line.sequence for line in lines] == [1, 2, 3, 4, 5]
    assert {line.rank for line in lines} == {0}


def test_a_flood_keeps_the_newest_lines_and_says_how_many_were_dropped(
    worker: Worker, database: Database, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_JOB_BYTES", 2**20)
    monkeypatch.setattr(local, "MAX_LOG_BYTES", 4 * 2**20)
    job_id = submit({"*": {"prints": f"{'x' * 99}\n", "print_times": 30_000}})
    run_job(worker)
    dropped, *kept = texts_of(database, job_id)
    assert read_job(database, job_id).state == "succeeded"
    assert set(kept) == {"x" * 99}
    assert 2**20 <= 100 * len(kept) < 2**20 + 2 * logs.PIECE_BYTES
    count = 30_001 - len(kept)
    assert dropped == f"[{count:,} earlier lines were dropped: a job keeps the newest 1 MiB of its log]"


def test_a_line_without_an_end_is_cut(worker: Worker, database: Database, submit: Submit) -> None:
    job_id = submit({"*": {"prints": "x" * 1000, "print_times": 1000}})
    run_job(worker)
    assert texts_of(database, job_id) == [STARTS, "x" * 1999 + "…"]


def test_lines_are_stored_once_if_the_connection_is_lost_after_the_commit(
    worker: Worker, database: Database, submit: Submit, postgres_url: str
) -> None:
    written, num_lost = False, 0

    def note_statement(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        nonlocal written
        written = written or "INSERT INTO job_logs" in statement

    def lose_connection(_session: Session) -> None:
        nonlocal written, num_lost
        if written:
            written, num_lost = False, num_lost + 1
            raise OperationalError("COMMIT", {}, Exception("connection lost"))

    event.listen(worker.database.engine, "before_cursor_execute", note_statement)
    event.listen(Session, "after_commit", lose_connection)
    job_id = submit({"*": {"prints": "line\n", "print_times": 100_000}})
    try:
        run_job(worker)
    finally:
        event.remove(Session, "after_commit", lose_connection)
    assert num_lost >= 2
    assert read_job(database, job_id).state == "succeeded"
    assert texts_of(database, job_id) == [STARTS, *["line"] * 100_000]


def test_lines_that_the_database_refuses_do_not_end_the_job(
    worker: Worker, database: Database, submit: Submit, postgres_url: str
) -> None:
    with database.transaction() as session:
        session.execute(sql("ALTER TABLE job_logs RENAME TO hidden"))
    job_id = submit({"*": {"prints": "line\n"}})
    run_job(worker)
    assert read_job(database, job_id).state == "succeeded"
    with database.transaction() as session:
        session.execute(sql("ALTER TABLE hidden RENAME TO job_logs"))


def test_the_whole_log_is_stored_before_the_state_changes(
    worker: Worker, database: Database, submit: Submit
) -> None:
    with database.transaction() as session:
        session.execute(sql("CREATE TABLE seen (job_id TEXT, lines INTEGER)"))
        session.execute(sql(NOTE_LINES_AT_END))
    faults = [{}, {"fail_at": 2}]
    ids = [submit({"*": {"prints": "line\n", "print_times": 20_000, **fault}}) for fault in faults]
    run_until_idle(worker, database)
    with database.reading() as session:
        seen = dict(session.execute(sql("SELECT job_id, lines FROM seen")).all())
    assert seen == dict.fromkeys(ids, 20_001)


def test_the_log_is_deleted_with_its_job(database: Database) -> None:
    job_id = insert_job(database)
    with database.transaction() as session:
        logs.append(session, job_id, 1, [logs.PrintedLines(0, ["a"])], after=0)
    with database.transaction() as session:
        session.execute(sql("DELETE FROM jobs"))
    with database.reading() as session:
        assert session.scalars(select(LogPiece)).all() == []
