"""Passing trouble is waited out; all else is final."""

import time
from email.utils import formatdate

import pytest

from grpo_engine.outbound.addresses import AllowedHosts
from grpo_engine.outbound.web import NoAnswer, post_patiently
from tests.support.chat_server import Reply, ScriptedServer


def trusting(server: ScriptedServer) -> AllowedHosts:
    return AllowedHosts(frozenset({server.host}))


def replies(*given: Reply) -> ScriptedServer:
    """A server that answers with these, one after the other, and then with "fine"."""
    left = list(given)
    return ScriptedServer(lambda recorded: left.pop(0) if left else "fine")


NOW = {"Retry-After": "0"}


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
def test_temporary_errors_are_retried(status: int) -> None:
    with replies(Reply(status=status, headers=NOW), Reply(status=status, headers=NOW)) as server:
        answer = post_patiently(
            server.url, b"", {}, timeout_seconds=5, max_retries=2, allowed_hosts=trusting(server)
        )
    assert (answer.body, len(server.requests)) == (b"fine", 3)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_a_refusal_is_final(status: int) -> None:
    with replies(Reply(status=status)) as server:
        answer = post_patiently(
            server.url, b"", {}, timeout_seconds=5, max_retries=2, allowed_hosts=trusting(server)
        )
    assert (answer.status, len(server.requests)) == (status, 1)


def test_a_lost_connection_is_tried_again_after_a_pause() -> None:
    with replies(Reply(drop=True)) as server:
        start = time.monotonic()
        answer = post_patiently(
            server.url, b"", {}, timeout_seconds=5, max_retries=1, allowed_hosts=trusting(server)
        )
        assert 0.25 <= time.monotonic() - start < 2
    assert (answer.body, len(server.requests)) == (b"fine", 2)


def test_after_the_last_retry_the_error_is_reported() -> None:
    with replies(*[Reply(status=503, headers=NOW)] * 5) as server:
        answer = post_patiently(
            server.url, b"", {}, timeout_seconds=5, max_retries=2, allowed_hosts=trusting(server)
        )
    assert (answer.status, len(server.requests)) == (503, 3)


def test_an_answer_says_more_than_a_retry_that_gets_none() -> None:
    with replies(Reply(status=503, headers=NOW), Reply(drop=True)) as server:
        answer = post_patiently(
            server.url, b"", {}, timeout_seconds=5, max_retries=1, allowed_hosts=trusting(server)
        )
    assert (answer.status, len(server.requests)) == (503, 2)


def test_an_error_names_the_time_limit_of_all_attempts_together() -> None:
    with (
        replies(Reply(drop=True), Reply(stall=True)) as server,
        pytest.raises(NoAnswer, match=r"127\.0\.0\.1 did not answer within 2 s"),
    ):
        post_patiently(server.url, b"", {}, timeout_seconds=2, max_retries=1, allowed_hosts=trusting(server))
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "asked", ["3600", formatdate(time.time() + 3600, usegmt=True)], ids=["seconds", "date"]
)
def test_a_pause_beyond_the_time_limit_is_not_waited_for(asked: str) -> None:
    with replies(Reply(status=429, headers={"Retry-After": asked})) as server:
        start = time.monotonic()
        answer = post_patiently(
            server.url, b"", {}, timeout_seconds=5, max_retries=2, allowed_hosts=trusting(server)
        )
        assert time.monotonic() - start < 2
    assert (answer.status, len(server.requests)) == (429, 1)


def test_a_date_that_has_passed_and_nonsense_do_not_stop_the_retries() -> None:
    past = Reply(status=503, headers={"Retry-After": formatdate(0, usegmt=True)})
    with replies(past, Reply(status=503, headers={"Retry-After": "soon"})) as server:
        answer = post_patiently(
            server.url, b"", {}, timeout_seconds=9, max_retries=2, allowed_hosts=trusting(server)
        )
    assert (answer.body, len(server.requests)) == (b"fine", 3)
