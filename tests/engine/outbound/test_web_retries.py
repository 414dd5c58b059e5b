"""Passing trouble is waited out; all else is final."""

import time
from email.utils import formatdate
from types import SimpleNamespace

import pytest

from grpo_engine.outbound import web
from grpo_engine.outbound.addresses import AllowedHosts
from grpo_engine.outbound.web import NoAnswer, WebAnswer, post_with_retries
from grpo_engine.process import deadline
from tests.support.chat_server import Recorded, Reply, ScriptedServer

SECONDS = 60


class Clock:
    """The clock and the pauses of the requests: a pause advances the clock and takes no time."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        self.ahead += seconds
        self.pauses.append(seconds)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (web, deadline):
        fake = SimpleNamespace(monotonic=clock.monotonic, sleep=clock.sleep, time=time.time)
        monkeypatch.setattr(module, "time", fake)
    return clock


def patiently(server: ScriptedServer, max_retries: int) -> WebAnswer:
    allowed_hosts = AllowedHosts(frozenset({server.host}))
    return post_with_retries(
        server.url, b"", {}, timeout_seconds=SECONDS, max_retries=max_retries, allowed_hosts=allowed_hosts
    )


def replies(*given: Reply) -> ScriptedServer:
    """A server that answers with these, one after the other, and then with "fine"."""
    left = list(given)
    return ScriptedServer(lambda recorded: left.pop(0) if left else "fine")


NOW = {"Retry-After": "0"}


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_temporary_errors_are_retried(status: int) -> None:
    with replies(Reply(status=status, headers=NOW), Reply(status=status, headers=NOW)) as server:
        answer = patiently(server, 2)
    assert (answer.body, len(server.requests)) == (b"fine", 3)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_final(status: int) -> None:
    with replies(Reply(status=status)) as server:
        answer = patiently(server, 2)
    assert (answer.status, len(server.requests)) == (status, 1)


def test_a_lost_connection_is_tried_again_after_a_pause(clock: Clock) -> None:
    with replies(Reply(drop=True)) as server:
        answer = patiently(server, 1)
    (pause,) = clock.pauses
    assert 0.25 <= pause <= 0.5
    assert (answer.body, len(server.requests)) == (b"fine", 2)


def test_after_the_last_retry_the_error_is_reported() -> None:
    with replies(*[Reply(status=503, headers=NOW)] * 5) as server:
        answer = patiently(server, 2)
    assert (answer.status, len(server.requests)) == (503, 3)


def test_an_answer_says_more_than_a_retry_that_gets_none() -> None:
    with replies(Reply(status=503, headers=NOW), Reply(drop=True)) as server:
        answer = patiently(server, 1)
    assert (answer.status, len(server.requests)) == (503, 2)


def test_an_error_names_the_time_limit_of_all_attempts_together(clock: Clock) -> None:
    def reply(recorded: Recorded) -> Reply:
        if len(server.requests) == 1:
            return Reply(drop=True)
        clock.ahead += SECONDS
        return Reply(body=b"x" * 10_000, drip_seconds=0.02)

    with (
        ScriptedServer(reply) as server,
        pytest.raises(NoAnswer, match=rf"127\.0\.0\.1 did not answer within {SECONDS} s"),
    ):
        patiently(server, 1)
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "asked", ["3600", formatdate(time.time() + 86_400, usegmt=True)], ids=["seconds", "date"]
)
def test_a_pause_beyond_the_time_limit_is_not_waited_for(asked: str, clock: Clock) -> None:
    with replies(Reply(status=429, headers={"Retry-After": asked})) as server:
        answer = patiently(server, 2)
    assert (answer.status, len(server.requests), clock.pauses) == (429, 1, [])


def test_a_date_that_has_passed_and_nonsense_do_not_stop_the_retries() -> None:
    past = Reply(status=503, headers={"Retry-After": formatdate(0, usegmt=True)})
    with replies(past, Reply(status=503, headers={"Retry-After": "soon"})) as server:
        answer = patiently(server, 2)
    assert (answer.body, len(server.requests)) == (b"fine", 3)
