"""Chat with a hub model that no job has used yet: the chat worker downloads it."""

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from service.hub.child_process import find_model
from service.platform.catalog import Catalog
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.serving.answering import answering
from tests.support.model_hub.server import ModelHub

pytestmark = on_sqlite  # nothing here depends on the database

BODY = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def name(settings: Settings, hub: ModelHub) -> Iterator[str]:
    """A model that is added and not downloaded, and a chat worker."""
    Catalog(settings).add_from_hub(hub.id, find_model(settings, hub.id))
    with answering(settings):
        yield hub.id


def test_the_first_answer_waits_for_the_download(client: TestClient, settings: Settings, name: str) -> None:
    answer = client.post("/v1/chat/completions", json={"model": name, **BODY})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "Base: hello"
    entry = Catalog(settings).find(name)
    assert entry is not None
    assert not entry.must_download


def test_a_refused_download_is_the_answer(client: TestClient, name: str, hub: ModelHub) -> None:
    hub.token = "hf_needed"
    answer = client.post("/v1/chat/completions", json={"model": name, **BODY})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_unloadable")
    assert "Accept its terms at" in answer.json()["error"]["message"]
