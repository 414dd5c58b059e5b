"""The examples of /docs: each operation has one, and each is a request that the service takes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from service.app import create_app
from service.web.openapi_examples import BODIES, QUERIES, curl
from tests.service.web.tenancy import World, sqlite_world
from tests.service.webhooks.webhook_samples import NOWHERE


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A service in which there is something of every kind."""
    with sqlite_world(tmp_path_factory.mktemp("home")) as found:
        yield found


def operations() -> dict[str, dict[str, Any]]:
    paths = create_app().openapi()["paths"]
    return {f"{method} {path}": one for path, methods in paths.items() for method, one in methods.items()}


def test_every_operation_is_described_with_its_curl_command() -> None:
    for name, operation in operations().items():
        assert curl(name) in operation["description"], name


def test_every_json_body_has_an_example_and_every_example_an_operation() -> None:
    bodies = {name: one.get("requestBody", {}).get("content", {}) for name, one in operations().items()}
    with_body = {name for name, content in bodies.items() if "application/json" in content}
    assert with_body == BODIES.keys()
    assert operations().keys() >= QUERIES.keys()


@pytest.mark.parametrize("name", sorted({**BODIES, **QUERIES}))
def test_the_service_accepts_every_example(found: World, name: str) -> None:
    method, path = name.split(" ", 1)
    named = {"job_id": "succeeded", "endpoint_id": "webhook", "file_id": "free_file"}
    ids = {parameter: found.ids[name] for parameter, name in named.items()}
    ids["key_id"] = found.keys["other"].split("_")[1]
    body = json.dumps(BODIES.get(name, {})).replace("file-\\u2026", found.ids["file"])
    body = body.replace(json.dumps("https://example.com/hook"), json.dumps(NOWHERE))
    with found.client("admin" if path.startswith("/v1/keys") else "owner") as client:
        given = {"content": body, "headers": {"content-type": "application/json"}} if name in BODIES else {}
        answer = client.request(method, path.format(**ids) + QUERIES.get(name, ""), **given)
    assert answer.is_success, answer.text
