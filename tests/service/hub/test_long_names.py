"""Names of hub models that are longer than any id of this service."""

import pytest
from fastapi.testclient import TestClient

from service.platform import audit
from service.platform.db import Database
from service.settings import Settings
from tests.support.model_hub.server import ModelHub

LONG = f"organisation/{'model-' * 13}7B"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """An operator who allows the hub's models."""
    return settings.model_copy(update={"hub_models": True})


def test_a_model_with_a_long_name_is_added(client: TestClient, database: Database, hub: ModelHub) -> None:
    hub.id = LONG
    added = client.post("/v1/models", json={"id": LONG})
    assert added.status_code == 200, added.text
    assert added.json()["id"] == LONG
    with database.reading() as session:
        (entry,) = audit.newest(session, tenant="tenant-a", limit=1)
    assert entry.action == "model.add"
    assert LONG.startswith(entry.object_id)
