"""The compatibility page: complete, up to date, and true, call by call, against a running service."""

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import openai
import pytest
import standardwebhooks
from openai import BaseModel, OpenAI
from openai.pagination import BasePage

from docs.generate_compatibility import ABSENT, CALLS, PAGE, Things, page, public_methods
from service.jobs.model.states import JobState
from service.jobs.store import history
from service.jobs.store.history import HistoryEntry
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import (
    add_artifact,
    add_checkpoint,
    add_job,
    jsonl,
    make_model,
    row,
    store_file,
)
from tests.support.chat_server import Reply, ScriptedServer
from tests.support.webhook_receiver import ALLOWED

# shapes of answers do not depend on the database
pytestmark = [pytest.mark.filterwarnings("ignore::DeprecationWarning"), on_sqlite]
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"allowed_hosts": ALLOWED})


@pytest.fixture
def receiver() -> Iterator[str]:
    """Where webhooks go."""
    with ScriptedServer(lambda _recorded: Reply(status=202)) as server:
        yield f"{server.url}/hook"


@pytest.fixture
def things(settings: Settings, database: Database, openai_client: OpenAI, receiver: str) -> Things:
    """A tenant with something of every kind."""
    make_model(settings.home)
    rows = jsonl(row(), row("What is 3+3?", "6"))
    model = "ft:tiny:tenant-a:demo:1"
    done = add_job(database, JobState.SUCCEEDED, fine_tuned_model=model, labels={"team": "a"})
    with database.transaction() as session:
        history.append(session, done, HistoryEntry("metrics", "Step 1", data={"step": 1}))
    add_artifact(settings, database, done, "metrics", b"step\n1\n")
    hook = openai_client.webhooks.create(name="ops", url=receiver, event_types=["fine_tuning.job.succeeded"])
    return Things(
        file=store_file(settings, database, rows),
        spare_file=store_file(settings, database, rows),
        job=done,
        queued_job=add_job(database, JobState.QUEUED),
        paused_job=add_job(database, JobState.PAUSED),
        model=model,
        checkpoint=add_checkpoint(settings, database, done, 5, b"weights"),
        webhook=hook.id,
        url=receiver,
        rows=rows,
        base_model="tiny",
        signed=signed_event(),
    )


def signed_event() -> tuple[str, dict[str, str], str]:
    event = {"id": "evt_1", "object": "event", "created_at": 1, "type": "fine_tuning.job.succeeded"}
    body, now = json.dumps(event | {"data": {"id": "ftjob-1"}}), datetime.now(UTC)
    signature = standardwebhooks.Webhook(SECRET).sign("evt_1", now, body)
    stamp = str(int(now.timestamp()))
    return body, {"webhook-id": "evt_1", "webhook-timestamp": stamp, "webhook-signature": signature}, SECRET


def test_every_public_method_of_the_installed_client_is_known() -> None:
    assert public_methods() == sorted(CALLS | ABSENT)
    assert CALLS.keys() & ABSENT.keys() == set()


def test_the_page_is_what_the_generator_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m docs.generate_compatibility"


def check_types(name: str, answer: Any) -> None:
    """The document is valid for the client's own types, which the client itself checks only leniently."""
    if isinstance(answer, BasePage):
        assert answer.data, f"{name}: an empty page shows nothing"
        for item in answer.data:
            check_types(name, item)
    elif isinstance(answer, BaseModel):
        document = answer.to_dict()
        if document.get("status") == "paused":
            document["status"] = "queued"  # OpenAI returns it too, but its own types lack it
        type(answer).model_validate(document)
    elif name == "files.content":
        assert answer.read()
    elif name == "files.retrieve_content":
        assert json.loads(answer.splitlines()[0])
    else:
        assert (name, answer) == ("webhooks.verify_signature", None)


def test_what_the_page_calls_supported_answers_as_typed(openai_client: OpenAI, things: Things) -> None:
    paused_later = replace(things, queued_job=things.paused_job)
    for name, known in CALLS.items():
        is_cancel = name == "fine_tuning.jobs.cancel"
        check_types(name, known.call(openai_client, paused_later if is_cancel else things))


def test_what_the_page_calls_absent_is_a_clear_error(openai_client: OpenAI, things: Things) -> None:
    for name, absent in ABSENT.items():
        with pytest.raises(openai.NotFoundError, match="Unknown route: ") as caught:
            absent.call(openai_client, things)
        assert caught.value.code == "unknown_route", name
        assert caught.value.type == "invalid_request_error"
        assert caught.value.request_id
