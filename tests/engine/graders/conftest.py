"""A judge for the tests of graders that use one."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.graders.model_spending import Ledger, SharedCalls
from grpo_engine.graders.pool import executors
from grpo_engine.graders.rules import score_model
from tests.engine.graders.judges import KEY, Judge
from tests.engine.sandbox.patience import PATIENCE, be_patient
from tests.support.chat_server import Answer, ChatServer


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Judge]:
    """Starts a judge that answers so, as the operator's endpoint "default"; nothing is remembered before."""
    monkeypatch.setattr(score_model, "_ledger", Ledger())
    monkeypatch.setattr(score_model, "_graded", SharedCalls(100))
    started: list[ChatServer] = []

    def start(answer: Callable[[dict[str, Any]], Answer], **endpoint: Any) -> ChatServer:
        server = ChatServer(answer).__enter__()
        started.append(server)
        file = tmp_path / "endpoints.json"
        file.write_text(json.dumps({"default": {"url": server.url, "api_key": KEY, **endpoint}}))
        monkeypatch.setenv("GRPO_ENDPOINTS", str(file))
        return server

    yield start
    for server in started:
        server.__exit__(None, None, None)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`patient(hangs)`: only calls with arguments for which it is true keep their time limit."""
    monkeypatch.setattr(executors, "ANSWER_SECONDS", PATIENCE)
    return partial(be_patient, monkeypatch)
