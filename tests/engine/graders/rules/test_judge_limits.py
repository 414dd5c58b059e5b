"""Costs of judges: equal requests are sent once, and limits hold."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from grpo_engine.graders.rules import score_model
from tests.engine.graders.judges import Judge, error, score
from tests.support.chat_server import Reply, chat_completion


def test_equal_requests_are_sent_once(judge: Judge) -> None:
    answers = iter(["0.1", "0.2", "0.3", "0.4"])
    server = judge(lambda request: next(answers))
    assert [score("a").reward, score("a").reward, score("b").reward] == [0.1, 0.1, 0.2]
    assert score("a", sampling_params={"temperature": 1}).reward == 0.3
    assert len(server.requests) == 3
    assert score_model.usage()["judge"].calls == 3


def test_without_a_cache_every_completion_is_judged(judge: Judge) -> None:
    answers = iter(['{"score": 0.1, "feedback": "x"}', "0.2"])
    server = judge(lambda request: next(answers))
    first = score("a", cache=False)
    assert (first.reward, first.feedback, len(server.requests)) == (0.1, "x", 1)
    assert score("a", cache=False).reward == 0.2


def test_errors_are_not_cached(judge: Judge) -> None:
    answers = iter(["no idea", "0.2"])
    judge(lambda request: next(answers))
    assert score().reward is None
    assert score().reward == 0.2


def test_concurrent_equal_requests_share_one_call(judge: Judge) -> None:
    asked, proceed = threading.Event(), threading.Event()

    def slow(request: dict[str, Any]) -> str:
        asked.set()
        proceed.wait(60)
        return "0.5"

    server = judge(slow)
    with ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(score) for _ in range(8)]
        assert asked.wait(60)
        proceed.set()
        assert {future.result().reward for future in futures} == {0.5}
    assert len(server.requests) == 1


def test_concurrent_requests_get_their_own_scores(judge: Judge) -> None:
    judge(lambda request: str(int(request["messages"][0]["content"].split()[1]) / 100))
    with ThreadPoolExecutor(32) as threads:
        found = list(threads.map(lambda number: score(str(number)).reward, range(64)))
    assert found == [number / 100 for number in range(64)]
    assert score_model.usage()["judge"].calls == 64


def test_the_number_of_calls_can_be_limited(judge: Judge) -> None:
    server = judge(lambda request: "1")
    found = [score(str(number), max_calls=3) for number in range(5)]
    assert [each.reward for each in found] == [1.0, 1.0, 1.0, None, None]
    assert error(found[4]) == ("other_error", "the limit of 3 calls is reached: no further calls")
    assert score("1", max_calls=3).reward == 1.0  # cached: no cost
    assert len(server.requests) == 3


def test_the_limit_of_calls_holds_between_threads(judge: Judge) -> None:
    server = judge(lambda request: "1")
    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(lambda number: score(str(number), max_calls=5).reward, range(40)))
    assert (found.count(1.0), found.count(None), len(server.requests)) == (5, 35, 5)


def test_the_cost_can_be_limited_and_is_counted_by_the_operators_prices(judge: Judge) -> None:
    # A call: 5 words in, 1 word out: 5 * 0.1 + 1 * 0.5 = 1 USD.
    server = judge(lambda request: "1", usd_per_million_input=1e5, usd_per_million_output=5e5)
    found = [score(str(number), max_cost_usd=2.5).reward for number in range(5)]
    assert found == [1.0, 1.0, 1.0, None, None]
    assert error(score("9", max_cost_usd=2.5))[1] == "the limit of 2.5 USD is reached: no further calls"
    usage = score_model.usage()["judge"]
    assert (usage.calls, usage.input_tokens, usage.output_tokens) == (3, 15, 3)
    assert usage.usd == pytest.approx(3.0)
    assert len(server.requests) == 3


def test_a_call_in_progress_counts_with_the_cost_of_a_longest_answer(judge: Judge) -> None:
    asked, proceed = threading.Event(), threading.Event()

    def slow(request: dict[str, Any]) -> str:
        asked.set()
        proceed.wait(60)
        return "1"

    judge(slow, usd_per_million_input=0, usd_per_million_output=1e4)
    limits = {"max_tokens": 100, "max_cost_usd": 1.0}
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(lambda: score("1", **limits))
        assert asked.wait(60)
        second = score("2", **limits)
        proceed.set()
        assert first.result().reward == 1.0
    assert error(second)[1] == "the limit of 1 USD is reached: no further calls"
    assert score("3", **limits).reward == 1.0


def test_useless_answers_and_answers_without_token_counts_cost_money(
    judge: Judge,
) -> None:
    def uncounted(request: dict[str, Any]) -> Reply:
        body = chat_completion(request, "no number")
        del body["usage"]
        return Reply(body=body)

    judge(uncounted, usd_per_million_input=0, usd_per_million_output=1e4)
    codes = [error(score(str(number), max_cost_usd=1.5))[0] for number in range(3)]
    assert codes == ["model_grader_parse_error", "model_grader_parse_error", "other_error"]


def test_a_limit_in_dollars_needs_prices(judge: Judge) -> None:
    server = judge(lambda request: "1")
    assert "max_cost_usd needs the prices of the endpoint 'default'" in error(score(max_cost_usd=1))[1]
    assert server.requests == []
