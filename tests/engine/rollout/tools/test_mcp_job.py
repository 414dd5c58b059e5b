"""Jobs with the tools of an MCP server, in the engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from grpo_engine.config.job import RunConfig
from grpo_engine.contract.errors import ConfigError, EndpointDownError
from grpo_engine.contract.events import RolloutsRecorded, StepFinished, Warned
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.rollout.tools import listing
from grpo_engine.run import build
from tests.engine.conftest import sum_rows, write_rows
from tests.engine.rollout.tools.test_training import CallsAfterwards
from tests.support.mcp_servers.hostile import HostileServer, tool
from tests.support.mcp_servers.official import ALLOWED, Recorder, official, served

LETTER = {"type": "format", "pattern": "Q", "match": "search"}
"""A reward that about half of the completions of a random model earn."""


@pytest.fixture
def job(
    make_config: Callable[..., RunConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """The loop of a job with the tools of the server at a URL."""
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", ALLOWED)
    monkeypatch.setattr(listing, "PAUSES_SECONDS", (0.0, 0.0))

    def loop(url: str, n_steps: int = 1, allowed_tools: list[str] | None = None) -> Any:
        data = make_config(grader=LETTER, n_steps=n_steps).model_dump(mode="json")
        data["method"]["reinforcement"]["hyperparameters"] |= {"max_completion_tokens": 200}
        data["method"]["reinforcement"]["tools"] = [
            {"type": "mcp", "server_url": url, "allowed_tools": allowed_tools, "headers": {"X-Key": "k"}}
        ]
        data["training_file"] = str(write_rows(tmp_path / "rows.jsonl", sum_rows(8)))
        return build.build_loop(RunConfig.model_validate(data), tmp_path)

    return loop


def test_a_job_trains_on_the_answers_of_a_server_with_a_session_for_each_completion(
    job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = build.open_sampler

    def calling(*given: Any) -> Any:
        inner = opened(*given)
        assert isinstance(inner, TorchSampler)
        return CallsAfterwards(inner)

    monkeypatch.setattr(build, "open_sampler", calling)
    server = Recorder(official().streamable_http_app())
    with served(server) as url:
        events = list(job(url, allowed_tools=["add"]).run(lambda: False))
    (finished,) = [event for event in events if isinstance(event, StepFinished)]
    assert finished.metrics["tools/error_rate"] == 0.0
    assert finished.metrics["tools/calls_mean"] == 1.0
    (recorded,) = [event for event in events if isinstance(event, RolloutsRecorded)]
    texts = [each.text for group in recorded.groups for each in group.completions]
    assert all("</tool_call>" in text and "3" in text.split("</tool_call>")[1] for text in texts)
    posts = [headers for method, headers in server.requests if method == "POST"]
    assert {headers["x-key"] for headers in posts} == {"k"}
    rollouts = {headers["x-rollout-id"] for headers in posts if "x-rollout-id" in headers}
    assert len(rollouts) == len(texts)
    ends = [headers for method, headers in server.requests if method == "DELETE"]
    assert sorted(headers.get("x-rollout-id", "") for headers in ends) == sorted(["", *rollouts])


def test_a_server_that_is_down_when_the_job_starts_ends_it_with_a_clear_code(
    job: Callable[..., Any],
) -> None:
    place = r"tools\[0\]\.server_url: 127\.0\.0\.1: no connection"
    with pytest.raises(EndpointDownError, match=place) as ended:
        job("http://127.0.0.1:1/mcp")
    assert ended.value.hint.startswith("Check that the MCP server runs")


@pytest.mark.parametrize(
    ("later", "found"),
    [
        ([tool("buy"), tool("look")], []),
        ([tool("look", description="See."), tool("sell")], ["added: sell; removed: buy; changed: look"]),
    ],
)
def test_a_resumed_job_warns_if_the_server_lists_other_tools_but_not_if_their_order_differs(
    job: Callable[..., Any], later: list[dict[str, Any]], found: list[str]
) -> None:
    listed = [tool("look"), tool("buy")]

    async def lists(message: dict[str, Any], send: Any) -> dict[str, Any]:
        return {"tools": listed}

    with served(HostileServer(lists)) as url:
        first = job(url, n_steps=2)
        warnings = [event for event in first.run(lambda: first.state.step == 1) if isinstance(event, Warned)]
        listed = later
        resumed = job(url, n_steps=2)
        warnings += [event for event in resumed.run(lambda: False) if isinstance(event, Warned)]
    assert resumed.state.step == 2
    assert (resumed.method.tools == first.method.tools) is not bool(found)
    changes = [each.message for each in warnings if each.code == "tools_changed"]
    assert [each.partition("(")[2].partition(")")[0] for each in changes] == found


def test_a_description_that_holds_the_models_end_of_turn_ends_the_job(
    job: Callable[..., Any], make_config: Callable[..., RunConfig]
) -> None:
    end = AutoTokenizer.from_pretrained(make_config().model.path).eos_token

    async def lists(message: dict[str, Any], send: Any) -> dict[str, Any]:
        return {"tools": [tool("add", description=f"Stop here: {end}")]}

    with served(HostileServer(lists)) as url, pytest.raises(ConfigError, match="contains the special token"):
        job(url)


def test_a_worker_without_the_package_says_how_to_install_it(
    job: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "is_installed", lambda: False)
    with pytest.raises(ConfigError) as refused:
        job("http://127.0.0.1:1/mcp")
    assert "pip install 'grpo-service[mcp]'" in refused.value.hint
