"""The command prints users' data verbatim, and the data cannot control the terminal."""

import io
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from rich.console import Console
from sqlalchemy import select, update

from service.cli.commands import watch
from service.cli.http.sse import StreamEvent
from service.cli.terminal import output
from service.jobs.model.states import JobState
from service.jobs.store.history import HistoryEntry, append
from service.platform.db import Database
from service.platform.tables.core import ApiKey, AuditEntry, File
from tests.conftest import on_sqlite
from tests.ports import free_port
from tests.service.cli.command import Grpo
from tests.service.embedded import call_grpo, environment
from tests.service.files.file_samples import uploaded
from tests.service.job_samples import add_job

pytestmark = on_sqlite  # the output does not depend on the database

NASTY = "[/b] [red]x[/] :abc: \x1b[31mred"
SHOWN = "[/b] [red]x[/] :abc: \\x1b[31mred"


def test_a_file_name_is_printed_verbatim(grpo: Grpo, client: TestClient, database: Database) -> None:
    file_id = uploaded(client)
    with database.transaction() as session:
        session.execute(update(File).where(File.id == file_id).values(filename=NASTY))
    (row,) = [line for line in grpo("files", "list").splitlines() if line.startswith(file_id)]
    assert SHOWN in row


def test_a_job_s_model_name_and_failure_are_printed_verbatim(grpo: Grpo, database: Database) -> None:
    failure = {"code": "stalled", "message": NASTY, "hint": NASTY, "evidence": []}
    name = "ft:tiny:default:abc:m0TCL"
    job_id = add_job(database, JobState.FAILED, failure=failure, fine_tuned_model=name)
    lines = [" ".join(line.split()) for line in grpo("status", job_id).splitlines()]
    assert f"trained model {name}" in lines
    assert f"failure stalled: {SHOWN}" in lines
    assert f"hint {SHOWN}" in lines


def test_a_job_s_model_and_events_are_printed_verbatim(grpo: Grpo, database: Database) -> None:
    job_id = add_job(database, JobState.RUNNING, model="ft:tiny:default:abc:m0TCL")
    with database.transaction() as session:
        append(session, job_id, HistoryEntry("message", NASTY))
    assert "ft:tiny:default:abc:m0TCL" in grpo("list")
    assert grpo("events", job_id).splitlines()[-1].endswith(SHOWN)


def test_the_list_says_below_its_table_why_a_job_needs_a_look(grpo: Grpo, database: Database) -> None:
    warnings = [{"code": "guard_no_signal", "message": NASTY}]
    job_id = add_job(database, JobState.SUCCEEDED, name="Sums", warnings=warnings)
    add_job(database, JobState.SUCCEEDED, name="Quiet")
    lines = grpo("list").splitlines()
    assert sum("(!)" in line for line in lines) == 2
    assert next(line for line in lines if line.startswith(job_id)).split()[1:4] == [
        "Sums",
        "succeeded",
        "(!)",
    ]
    assert lines[-1] == f"(!) Sums: {SHOWN}"


def test_a_watched_job_s_messages_are_printed_verbatim(grpo: Grpo, database: Database) -> None:
    failure = {"code": "stalled", "message": NASTY, "hint": NASTY, "evidence": []}
    job_id = add_job(database, JobState.FAILED, failure=failure)
    with database.transaction() as session:
        over = {"status": "failed", "state": "failed", "phase": "failed"}
        append(
            session, job_id, HistoryEntry("message", NASTY), HistoryEntry("status", "It failed.", data=over)
        )
    done = grpo.run("watch", job_id)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines() == [
        SHOWN,
        "failed",
        f"{job_id} failed",
        f"stalled: {SHOWN}",
        SHOWN,
        "See docs/reference/errors.md#failed-stalled",
    ]


@pytest.fixture
def screen() -> Console:
    """A terminal with readable content."""
    return Console(file=io.StringIO(), force_terminal=True, width=200, color_system=None)


def shown_on(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def test_a_live_bar_shows_data_verbatim(screen: Console) -> None:
    job = {"phase": NASTY, "status": "running", "progress": {"step": 0, "total_steps": 4}}
    bar = watch.Bar(job, screen)
    bar.message(f"message {NASTY}", "info")
    bar.close()
    assert f"message {SHOWN}" in shown_on(screen)
    assert f"\n{SHOWN} " in shown_on(screen).replace("\r", "\n").replace("\x1b[2K", "")
    assert "\x1b[31m" not in shown_on(screen)


def test_a_terminal_of_80_columns_shows_step_and_values() -> None:
    narrow = Console(file=io.StringIO(), force_terminal=True, width=80, color_system=None)
    job = {"phase": "training", "status": "running", "progress": {"step": 0, "total_steps": 3000}}
    bar = watch.Bar(job, narrow)
    names = [name for name, *_ in watch.SHOWN]
    bar.metrics({"step": 66, "total_steps": 3000, **dict.fromkeys(names, 0.125)})
    bar.close()
    *_, progress, values, _ = shown_on(narrow).replace("\r", "").split("\n")
    assert "66/3000" in progress
    assert values.rpartition("\x1b[2K")[2].startswith("reward 0.125  loss 0.1250  accuracy 0.125  KL 0.1250")


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"status": "running", "state": "running", "phase": "training"}, "running: training"),
        ({"status": "queued", "state": "queued", "phase": "queued"}, "queued"),
        ({"status": "running", "state": "running", "phase": None}, "running"),
    ],
)
def test_watching_prints_the_phase_after_the_status(screen: Console, data: dict[str, Any], line: str) -> None:
    lines = watch.Lines(screen)
    watch.show(StreamEvent("3", "status", data), lines)
    lines.close()
    assert shown_on(screen).splitlines() == [line]


def test_a_live_bar_shows_the_phase(screen: Console) -> None:
    bar = watch.Bar(
        {"phase": "queued", "status": "queued", "progress": {"step": 0, "total_steps": 4}}, screen
    )
    watch.show(StreamEvent("3", "status", {"status": "running", "phase": "evaluating"}), bar)
    bar.close()
    assert "evaluating" in shown_on(screen)


def test_json_output_contains_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    data = {"name": "é \x1b[31m \x7f \x9b31m \u202e \ud800"}
    output.print_json(data)
    printed = capsys.readouterr().out
    assert json.loads(printed) == data
    assert not set("\x1b\x7f\x9b\u202e\ud800") & set(printed)
    assert "é" in printed


def test_text_keeps_its_lines_and_has_control_characters_escaped() -> None:
    assert output.plain("a\tb\nc\r\x00\x9b\u202e") == "a\tb\nc\\r\\x00\\x9b\\u202e"


def test_keys_with_any_name_are_listed_with_their_expiry(offline: Grpo, database: Database) -> None:
    with database.transaction() as session:
        row = {"secret_sha256": "0" * 64, "expires_at": 2_000_000_000.0}
        session.add(ApiKey(public_id="k" * 16, tenant="[/b]", name=NASTY, **row))
    (line,) = [line for line in offline("keys", "list").splitlines() if line.startswith("k" * 16)]
    assert line.split()[1] == "[/b]"
    assert SHOWN in line
    assert output.at(2_000_000_000.0) in line


def test_a_key_expires_in_days(offline: Grpo, database: Database) -> None:
    made = json.loads(offline("keys", "create", "--tenant", "acme", "--expires-in", "30", "--json"))
    with database.reading() as session:
        row = session.get_one(ApiKey, made["id"])
    assert made["key"].startswith(f"grpo_{made['id']}_")
    assert (row.tenant, row.expires_at) == ("acme", made["expires_at"])
    assert row.expires_at - row.created_at == pytest.approx(30 * 24 * 3600, abs=1)


def test_a_key_has_no_expiry_by_default(offline: Grpo) -> None:
    made = json.loads(offline("keys", "create", "--tenant", "acme", "--json"))
    assert made["expires_at"] is None


def test_an_invalid_tenant_is_one_clear_error(offline: Grpo) -> None:
    done = offline.run("keys", "create", "--tenant", "[/b]")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.endswith("and starts with a letter or digit, not '[/b]'\n")


def test_creating_and_revoking_a_key_is_audited(offline: Grpo, database: Database) -> None:
    made = json.loads(offline("keys", "create", "--tenant", "acme", "--json"))
    offline("keys", "revoke", made["id"])
    with database.reading() as session:
        query = select(AuditEntry).where(AuditEntry.object_id == made["id"]).order_by(AuditEntry.id)
        found = [(row.tenant, row.key_id, row.action) for row in session.scalars(query)]
    assert found == [("acme", "cli", "key.create"), ("acme", "cli", "key.revoke")]


def test_a_rotated_key_of_any_scope_gets_a_successor(offline: Grpo) -> None:
    made = json.loads(offline("keys", "create", "--tenant", "acme", "--admin", "--name", "Anna", "--json"))
    new = json.loads(offline("keys", "rotate", made["key"], "--old-key-hours", "0", "--json"))
    assert new["replaces"] == made["id"]
    listed = {one["id"]: one for one in json.loads(offline("keys", "list", "--json"))}
    old, successor = listed[made["id"]], listed[new["id"]]
    for field in ("tenant", "name", "scopes", "expires_at"):
        assert successor[field] == old[field]
    assert (old["revoked_at"] is None, successor["revoked_at"]) == (False, None)
    done = offline.run("keys", "rotate", made["id"])
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: there is no usable key {made['id']}")


def test_with_json_an_error_is_one_json_document(offline: Grpo) -> None:
    code, error = offline.error("keys", "revoke", "missing", "--json")
    assert code == 1
    assert error == {
        "message": "there is no unrevoked key missing",
        "code": None,
        "param": None,
        "hint": "`grpo keys list` shows all",
        "doc": None,
    }


def test_a_database_without_tables_is_an_error_with_a_hint(tmp_path: Path) -> None:
    done = call_grpo("keys", "list", environment=environment(tmp_path / "empty"))
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith("Error: the database refused: no such table: api_keys Hint: `grpo migrate`")


def test_migrating_a_database_of_another_version_is_an_error_with_a_hint(tmp_path: Path) -> None:
    env = environment(tmp_path / "other")
    assert call_grpo("migrate", environment=env).returncode == 0
    with sqlite3.connect(tmp_path / "other" / "grpo.db") as other:
        other.execute("UPDATE alembic_version SET version_num = 'unknown'")
    done = call_grpo("migrate", environment=env)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith("Error: the database is of another version: Can't locate revision")
    assert line.endswith(
        "Hint: start the version that upgraded it last, or set GRPO_DATABASE_URL to an empty database"
    )


@pytest.mark.parametrize("command", [("migrate",), ("keys", "list")])
def test_a_database_that_does_not_respond_is_one_line(tmp_path: Path, command: tuple[str, ...]) -> None:
    url = f"postgresql://grpo@127.0.0.1:{free_port()}/grpo"
    done = call_grpo(*command, environment={**environment(tmp_path), "GRPO_DATABASE_URL": url})
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith("Error: the database refused: connection failed")
    assert "grpo migrate" not in line


def test_with_json_the_service_s_error_keeps_code_and_param(grpo: Grpo) -> None:
    code, error = grpo.error("status", "ftjob-none", "--json")
    assert (code, error["code"], error["message"]) == (
        1,
        "job_not_found",
        "There is no fine-tuning job ftjob-none.",
    )


def test_with_json_an_invalid_option_is_one_json_document(offline: Grpo) -> None:
    code, error = offline.error("files", "list", "--nothing", "--json")
    assert (code, error["code"]) == (2, "usage")
    assert "--nothing" in error["message"]


def test_help_works_with_json(offline: Grpo) -> None:
    assert "--expires-in" in offline("keys", "create", "--json", "--help")


def test_a_diagnosis_ends_with_the_command_that_retries_the_job(grpo: Grpo, database: Database) -> None:
    failure = {"code": "non_finite", "message": NASTY, "hint": "the hint", "evidence": ["Trace:\n  line 7"]}
    job_id = add_job(database, JobState.FAILED, failure=failure, step=4)
    assert grpo("diagnose", job_id).splitlines() == [
        f"{job_id} failed at step 4: "
        "The loss or its gradient became NaN or infinite: the updates were too large.",
        "",
        "error: The loss or its gradient became NaN or infinite: the updates were too large. [non_finite]",
        *(f"  at step 4 of 10: {SHOWN}", "  Trace:", "    line 7"),
        "  the hint",
        f"  grpo retry {job_id} --set method.reinforcement.hyperparameters.learning_rate=3.3e-06",
    ]


def test_a_deleted_file_is_gone(grpo: Grpo, client: TestClient) -> None:
    file_id = uploaded(client)
    assert grpo("files", "delete", file_id) == f"{file_id} deleted\n"
    assert client.get(f"/v1/files/{file_id}").status_code == 404
