"""`grpo watch` shows why completions cannot be scored, and how to resume a paused job."""

from http.server import BaseHTTPRequestHandler

from service.cli.commands.watch import GraderErrors
from service.cli.http.client import Client
from service.jobs.model.states import JobState
from service.jobs.store.history import HistoryEntry, append
from service.platform.db import Database
from tests.conftest import on_sqlite
from tests.service.cli.command import Grpo
from tests.service.cli.test_transfer import send, server
from tests.service.job_samples import add_job
from tests.service.rollouts.rollout_samples import add_group, completion

pytestmark = on_sqlite

TRACEBACK = "Traceback (most recent call last):\n  File \"<grader>\", line 2, in grade\nKeyError: 'answer'"
FAILURE = {
    "code": "grader_contract",
    "message": "8 of 8 completions could not be scored",
    "hint": "Correct the grader.",
    "evidence": [f"row 3: python: python_grader_runtime_error: {TRACEBACK}"],
}


def unscored(message: str) -> dict[str, object]:
    error = {"code": "python_grader_runtime_error", "message": message}
    return completion(None, text="The answer\nis 4.", errors={"python": error})


def test_each_reason_is_shown_once_with_its_row_and_traceback(grpo: Grpo, database: Database) -> None:
    job_id = add_job(database, JobState.FAILED, failure=FAILURE)
    rate = {"rewards/python/error_rate": 0.5, "reward": 0.25}
    for step in (1, 2):
        add_group(database, job_id, step, 0, [unscored(TRACEBACK), completion(1.0)], row=2)
    add_group(database, job_id, 5, 0, [unscored("out of time")], split="validation", row=0)
    over = {"status": "failed", "state": "failed", "phase": "failed"}
    with database.transaction() as session:
        append(
            session,
            job_id,
            HistoryEntry("metrics", "Step 1", data={"step": 1, "total_steps": 9, **rate}),
            HistoryEntry("metrics", "Step 2", data={"step": 2, "total_steps": 9, **rate}),
            HistoryEntry("metrics", "Step 3", data={"step": 3, "total_steps": 9, "reward": 1.0}),
            HistoryEntry("metrics", "After 5", data={"step": 5, "eval/error_rate": 1.0, "eval/reward": 0.0}),
            HistoryEntry("status", "It failed.", data=over),
        )
    shown = grpo.run("watch", job_id).stdout
    first = f"could not score a completion (step 1, row 3): python_grader_runtime_error\n{TRACEBACK}\n"
    assert f"warn: python {first}warn: the completion: The answer is 4.\n" in shown
    assert "(step 5, row 1): python_grader_runtime_error\nout of time\n" in shown
    assert shown.count("could not score a completion") == 2
    assert shown.index("(step 1, row 3)") < shown.index("step 3/9")
    evidence = FAILURE["evidence"][0]
    page = "docs/reference/errors.md#failed-grader_contract"
    assert shown.endswith(f"Correct the grader.\n{evidence}\nSee {page}\n")


def test_reasons_that_cannot_be_read_do_not_end_the_watch() -> None:
    def away(handler: BaseHTTPRequestHandler) -> None:
        send(handler, 503, b"", length=0, Retry_After="0")

    with server(away) as url, Client(url, "key") as client:
        found = GraderErrors(client, "ftjob-1").found({"step": 1, "rewards/python/error_rate": 0.5})
        assert list(found) == []


def test_a_failed_session_is_shown_with_its_row_and_reason(grpo: Grpo, database: Database) -> None:
    job_id = add_job(database, JobState.FAILED, failure=FAILURE)
    error = {"code": "model_grader_server_error", "message": "no answer to step within 3 s"}
    lost = completion(None, text="north", errors={"rollout": error})
    silent = completion(None, text="", errors={"rollout": error | {"message": "no connection"}})
    add_group(database, job_id, 1, 0, [lost, silent], row=2)
    values = {"step": 1, "total_steps": 9, "environments/maze/failure_rate": 0.5}
    over = {"status": "failed", "state": "failed", "phase": "failed"}
    with database.transaction() as session:
        entries = (HistoryEntry("metrics", "Step 1", data=values), HistoryEntry("status", "Over.", data=over))
        append(session, job_id, *entries)
    shown = grpo.run("watch", job_id).stdout
    reason = "a session failed (step 1, row 3): no answer to step within 3 s"
    assert f"warn: {reason}\nwarn: the completion: north\n" in shown
    assert "row 3): no connection\n" in shown
    assert shown.count("the completion:") == 1


def test_a_paused_job_is_shown_with_the_command_that_continues_it(grpo: Grpo, database: Database) -> None:
    job_id = add_job(database, JobState.CANCELLED)
    paused = {"status": "paused", "state": "paused", "phase": "paused"}
    over = {"status": "cancelled", "state": "cancelled", "phase": "cancelled"}
    with database.transaction() as session:
        append(
            session,
            job_id,
            HistoryEntry("status", "The job was paused.", data=paused),
            HistoryEntry("status", "The job was cancelled.", data=over),
        )
    lines = grpo.run("watch", job_id).stdout.splitlines()
    assert lines == ["paused", f"`grpo resume {job_id}` continues it.", "cancelled", f"{job_id} cancelled"]
