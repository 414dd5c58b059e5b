"""The service under test: in process for most tests, behind a real uvicorn for OpenAI's own client.

`settings` and `database` come from tests/conftest.py: every test that needs them runs on both databases.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from openai import OpenAI
from starlette.datastructures import State

from service.app import create_app
from service.platform.db import Database
from service.settings import Settings
from service.web.auth import create_key
from tests.service.job_samples import make_model
from tests.service.serving.processes import serving


@pytest.fixture
def api_key(database: Database) -> str:
    with database.transaction() as session:
        return create_key(session, "tenant-a")


@pytest.fixture
def other_api_key(database: Database) -> str:
    """A key of another tenant."""
    with database.transaction() as session:
        return create_key(session, "tenant-b")


@pytest.fixture
def model(settings: Settings) -> Path:
    """The folder of the only model in the catalogue."""
    return make_model(settings.home)


@cache
def application(max_upload_bytes: int) -> FastAPI:
    """Routes and middleware for all tests: they take 0.1 s, and all state is a lifespan's."""
    return create_app(Settings(max_upload_bytes=max_upload_bytes))


@pytest.fixture
def app(settings: Settings) -> FastAPI:
    app = application(settings.max_upload_bytes)
    app.state = State()
    app.state.settings = settings
    return app


@pytest.fixture
def anonymous(app: FastAPI) -> Iterator[TestClient]:
    """Calls the running application without a key."""
    with TestClient(app, follow_redirects=False) as client:
        yield client


@pytest.fixture
def client(app: FastAPI, anonymous: TestClient, api_key: str) -> TestClient:
    """Calls the same application as the first tenant."""
    return TestClient(app, headers={"authorization": f"Bearer {api_key}"}, follow_redirects=False)


@pytest.fixture
def other_client(app: FastAPI, anonymous: TestClient, other_api_key: str) -> TestClient:
    """Calls the same application as the second tenant."""
    return TestClient(app, headers={"authorization": f"Bearer {other_api_key}"}, follow_redirects=False)


@pytest.fixture
def server_url(app: FastAPI) -> Iterator[str]:
    """The application behind a real uvicorn on a free port."""
    with serving(app) as url:
        yield url


@pytest.fixture
def openai_client(server_url: str, api_key: str) -> Iterator[OpenAI]:
    """OpenAI's unmodified client; a refused request fails at once."""
    with OpenAI(base_url=f"{server_url}/v1", api_key=api_key, max_retries=0) as client:
        yield client
