"""Webhooks at the end of jobs: which are sent, to whom, and without delaying the sweeper."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest
from openai.types.webhooks import FineTuningJobSucceededWebhookEvent
from sqlalchemy import event, update

from service.jobs.model.states import JobState
from service.jobs.store import queue, sweeping
from service.platform.clock import db_now
from service.platform.db import Database
from service.platform.tables.core import Job
from service.platform.tables.webhooks import WebhookEndpoint
from service.settings import Settings
from service.webhooks import sending
from tests.support.chat_server import Reply, ScriptedServer
from tests.support.servers import wait_until
from tests.support.webhook_receiver import ALLOWED, deliveries, make_due, register, verified
from tests.worker.conftest import Processes
from tests.worker.jobs import cancel, claimed, insert_job, read_job
from worker.attempt.runner import run_job
from worker.attempt.worker import Worker
from worker.supervision import supervised
from worker.sweeper import maintenance
from worker.webhook_sender import Sender

NOWHERE = "http://127.0.0.1:9/"
FAILURE = {"code": "non_finite", "message": "The loss is NaN.", "hint": "", "evidence": []}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"allowed_hosts": ALLOWED})


def claimed_id(database: Database) -> str:
    """Id of a claimed job of `acme`. Its wake-up was sent, so that no sweeper locks its row."""
    return claimed(database, last_woken_at=time.time()).id


def expire_lease(database: Database) -> None:
    with database.transaction() as session:
        session.execute(update(Job).values(lease_expires_at=db_now() - 1))


def finish(database: Database, state: JobState) -> str:
    job_id = claimed_id(database)
    failure = FAILURE if state is JobState.FAILED else None
    with database.transaction() as session:
        assert queue.finish(session, job_id, 1, state, failure=failure)
    return job_id


def cancel_queued(database: Database, tenant: str = "acme") -> str:
    job_id = insert_job(database, tenant=tenant)
    cancel(database, job_id, tenant)
    return job_id


def cancel_running(database: Database) -> str:
    job_id = claimed_id(database)
    with database.transaction() as session:
        queue.request(session, "acme", job_id, "cancel")
        assert queue.finish(session, job_id, 1, JobState.CANCELLED)
    return job_id


def lose_its_worker_once_too_often(database: Database) -> str:
    job_id = claimed_id(database)
    expire_lease(database)
    with database.transaction() as session:
        sweeping.sweep(session, backoff_seconds=0, max_failures=1)
    return job_id


ENDS: dict[str, tuple[Callable[[Database], str], str]] = {
    "succeeded": (lambda database: finish(database, JobState.SUCCEEDED), "succeeded"),
    "failed": (lambda database: finish(database, JobState.FAILED), "failed"),
    "paused by a guard": (lambda database: finish(database, JobState.PAUSED), "paused"),
    "cancelled while queued": (cancel_queued, "cancelled"),
    "cancelled while running": (cancel_running, "cancelled"),
    "poisoned": (lose_its_worker_once_too_often, "failed"),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_end_of_a_job_sends_one_event(database: Database, settings: Settings, end: str) -> None:
    webhook = register(database, settings, NOWHERE)
    happens, state = ENDS[end]
    job_id = happens(database)
    assert read_job(database, job_id).state == state
    (row,) = deliveries(database)
    assert (row.event_type, row.job_id) == (f"fine_tuning.job.{state}", job_id)
    assert (row.id, row.state, row.claim) == (f"{row.event_id}_{webhook.id}", "pending", 0)


def test_events_are_sent_to_the_job_s_tenant_by_subscription(database: Database, settings: Settings) -> None:
    wanting = [register(database, settings, NOWHERE, event_types=["fine_tuning.job.cancelled"]) for _ in "ab"]
    register(database, settings, NOWHERE, event_types=["fine_tuning.job.failed", "fine_tuning.job.paused"])
    register(database, settings, NOWHERE, tenant="other")
    cancel_queued(database)
    rows = deliveries(database)
    assert {row.endpoint_id for row in rows} == {webhook.id for webhook in wanting}
    assert len({row.event_id for row in rows}) == 1


def test_a_refused_or_rolled_back_change_sends_nothing(database: Database, settings: Settings) -> None:
    register(database, settings, NOWHERE)
    job_id = claimed_id(database)
    with suppress(ZeroDivisionError), database.transaction() as session:
        assert queue.finish(session, job_id, 1, JobState.SUCCEEDED)
        _ = 1 / 0
    with database.transaction() as session:
        assert not queue.finish(session, job_id, 2, JobState.SUCCEEDED)
    assert deliveries(database) == []


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_subscribers_are_queried_only_for_tenants_with_webhooks(
    database: Database, settings: Settings
) -> None:
    register(database, settings, NOWHERE)
    with_webhook, without_webhook = (
        claimed_id(database),
        insert_job(database, tenant="none", state="running", fence=1),
    )
    sent: list[str] = []
    event.listen(database.engine, "before_cursor_execute", lambda *given: sent.append(given[2]))
    for job_id, expected in (
        (with_webhook, ["UPDATE", "INSERT", "INSERT"]),
        (without_webhook, ["UPDATE", "INSERT"]),
    ):
        sent.clear()
        with database.transaction() as session:
            assert queue.finish(session, job_id, 1, JobState.SUCCEEDED)
        assert [statement.split()[0] for statement in sent] == expected
    assert [row.job_id for row in deliveries(database)] == [with_webhook]


def test_a_trained_job_sends_one_event_that_openai_s_client_verifies(
    database: Database, settings: Settings, worker: Worker, submit: Callable[..., str]
) -> None:
    with ScriptedServer(lambda _recorded: Reply(status=200)) as server:
        secret = register(database, settings, server.url).signing_secret
        job_id = submit()
        assert run_job(worker)
        assert [Sender(database, settings).send_one() for _ in range(2)] == [True, False]
    (recorded,) = server.requests
    received = verified(recorded, secret)
    assert type(received) is FineTuningJobSucceededWebhookEvent
    assert (received.type, received.object) == ("fine_tuning.job.succeeded", "event")
    assert received.data.id == job_id
    assert received.created_at == pytest.approx(read_job(database, job_id).finished_at or 0, abs=2)
    assert len(recorded.body) < 20_000


def test_a_sweeper_killed_before_it_records_a_delivery_repeats_it_with_the_same_id(
    database: Database, settings: Settings, processes: Processes
) -> None:
    with ScriptedServer(lambda _recorded: Reply(status=200)) as server:
        secret = register(database, settings, server.url).signing_secret
        cancel_queued(database)
        first = processes.start("-m", "worker.sweeper", fault="webhook.sent:kill")
        assert first.wait(30) == -signal.SIGKILL
        (row,) = deliveries(database)
        assert (row.state, row.claim, row.attempts) == ("pending", 1, [])
        make_due(database)
        processes.start("-m", "worker.sweeper")
        wait_until(lambda: deliveries(database)[0].state == "delivered", 30, processes.logs())
    assert [verified(one, secret).id for one in server.requests] == [row.event_id] * 2
    assert [one.headers["webhook-id"] for one in server.requests] == [row.id] * 2


@pytest.fixture
def start_helpers(
    database: Database, settings: Settings, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """Starts the sweeper and the senders. They stop after the test's receivers, whose silence blocks them."""
    monkeypatch.setattr(sending, "SEND_SECONDS", 60.0)  # no delivery times out during the test
    stopping = threading.Event()
    helpers = maintenance(database, worker.wakeups, settings, has_worker=False)
    with ExitStack() as stack:
        yield lambda: stack.enter_context(supervised(helpers, stopping))
        stopping.set()


def test_one_tenant_s_silent_receivers_delay_neither_others_nor_the_sweeper(
    database: Database, settings: Settings, start_helpers: Callable[[], None]
) -> None:
    with (
        ScriptedServer(lambda _recorded: Reply(stall=True)) as silent,
        ScriptedServer(lambda _recorded: Reply(status=200)) as server,
    ):
        for _ in range(6):
            register(database, settings, silent.url)
        register(database, settings, server.url, tenant="other")
        cancel_queued(database)
        start_helpers()
        wait_until(lambda: silent.requests, 120)
        with database.transaction() as session:
            queue.request(session, "other", insert_job(database, tenant="other"), "cancel")
        lost = claimed_id(database)
        expire_lease(database)
        wait_until(lambda: server.requests, 120, "the other tenant receives its event")
        wait_until(lambda: read_job(database, lost).fence > 1, 120, "the lost job is swept")
        assert len(silent.requests) == 2


def test_a_silent_receiver_does_not_delay_the_tenant_s_other_one(
    database: Database, settings: Settings, start_helpers: Callable[[], None]
) -> None:
    with (
        ScriptedServer(lambda _recorded: Reply(stall=True)) as silent,
        ScriptedServer(lambda _recorded: Reply(status=200)) as server,
    ):
        register(database, settings, silent.url)
        for _ in range(6):
            cancel_queued(database)
        register(database, settings, server.url)
        cancel_queued(database)
        start_helpers()
        wait_until(lambda: server.requests, 120, "the other receiver gets its event")
        assert len(silent.requests) == 1


def test_the_silent_receivers_of_several_tenants_do_not_delay_another_tenant(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch, worker: Worker
) -> None:
    monkeypatch.setattr(sending, "SEND_SECONDS", 1.0)
    helpers, stopping = maintenance(database, worker.wakeups, settings, has_worker=False), threading.Event()
    with (
        ScriptedServer(lambda _recorded: Reply(stall=True)) as silent,
        ScriptedServer(lambda _recorded: Reply(status=200)) as server,
    ):
        for tenant in ("acme", "second"):
            for _ in range(2):
                register(database, settings, silent.url, tenant=tenant)
            for _ in range(6):
                cancel_queued(database, tenant)
        register(database, settings, server.url, tenant="other")
        cancel_queued(database, "other")
        with supervised(helpers, stopping):
            wait_until(lambda: server.requests, 120, "the other tenant receives its event")
            num_silent = len(silent.requests)
            stopping.set()
    assert num_silent <= 8, "it waits for two rounds of the four threads at most"


def test_a_delivery_that_cannot_be_signed_delays_no_other_delivery(
    database: Database, settings: Settings, worker: Worker
) -> None:
    stopping = threading.Event()
    helpers = maintenance(database, worker.wakeups, settings, has_worker=False)
    with ScriptedServer(lambda _recorded: Reply(status=200)) as server:
        broken = register(database, settings, server.url)
        with database.transaction() as session:
            session.execute(update(WebhookEndpoint).values(secret="not base64"))
        register(database, settings, server.url)
        cancel_queued(database)
        with supervised(helpers, stopping):
            wait_until(lambda: {row.state for row in deliveries(database)} == {"pending", "delivered"}, 120)
            stopping.set()
    left = {row.endpoint_id: row.state for row in deliveries(database)}
    assert left[broken.id] == "pending"
