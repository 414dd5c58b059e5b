"""The application as a whole: what it loads, what it offers, what it starts without."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import jsonschema
import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.platform.errors import NotFound
from tests.conftest import on_sqlite, settings_for
from tests.service.web.error_samples import error_of


@pytest.mark.parametrize("program", ["service.app", "worker.__main__"])
def test_a_program_loads_no_torch_and_before_it_has_a_broker_no_celery(program: str) -> None:
    heavy = {"torch", "transformers", "vllm", "peft", "celery", "redis"}
    script = f"import sys, {program}; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_a_command_loads_no_grader_and_no_database_before_it_needs_them() -> None:
    heavy = {"grpo_engine.config.job", "grpo_engine.graders", "sqlalchemy", "fastapi", "obstore", "alembic"}
    script = f"import sys, service.cli.main; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@on_sqlite
def test_the_openapi_document_lists_every_resource(anonymous: TestClient) -> None:
    paths = set(anonymous.get("/openapi.json").json()["paths"])
    assert paths >= {
        "/v1/files",
        "/v1/files/{file_id}/content",
        "/v1/fine_tuning/jobs",
        "/v1/fine_tuning/jobs/{job_id}/cancel",
        "/v1/fine_tuning/alpha/graders/run",
        "/v1/models",
        "/livez",
        "/readyz",
        "/metrics",
    }


@on_sqlite
def test_every_route_of_v1_needs_a_key(anonymous: TestClient) -> None:
    contract = anonymous.get("/openapi.json").json()["paths"]
    calls = [(method, path) for path, methods in contract.items() for method in methods if "/v1/" in path]
    answers = {(method, path): anonymous.request(method, path).status_code for method, path in calls}
    assert len(calls) > 15
    assert {call: status for call, status in answers.items() if status != 401} == {}


@pytest.fixture(scope="module")
def contract(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return create_app(settings_for(tmp_path_factory.mktemp("contract"))).openapi()


def operations(contract: dict[str, Any]) -> dict[str, dict[str, Any]]:
    paths = contract["paths"]
    return {f"{verb} {path}": given for path, verbs in paths.items() for verb, given in verbs.items()}


def test_every_operation_has_a_summary_and_a_description(contract: dict[str, Any]) -> None:
    found = operations(contract)
    assert [name for name, given in found.items() if not given.get("description")] == []
    assert found["get /v1/files/{file_id}"]["summary"] == "Retrieve file"
    assert len({given["summary"] for given in found.values()}) == len(found)


def test_documented_errors_match_the_responses(contract: dict[str, Any]) -> None:
    found = operations(contract)
    documented = {name: list(given["responses"]) for name, given in found.items()}
    assert documented["get /v1/files/{file_id}"] == ["200", "400", "401", "403", "404", "429", "503"]
    assert documented["post /v1/fine_tuning/jobs"] == [
        *("200", "400", "401", "403", "408", "413", "422", "429", "503", "507"),
    ]
    assert documented["post /v1/files"] == ["200", "400", "401", "403", "408", "413", "429", "503", "507"]
    assert documented["get /livez"] == ["200"]
    assert "404" in documented["get /v1/files"]  # of `after`
    assert "429" in documented["post /v1/fine_tuning/alpha/graders/run"]
    schemas = {
        response["content"]["application/json"]["schema"]["$ref"]
        for name, given in found.items()
        for status, response in given["responses"].items()
        if status >= "400" and "/v1/" in name
    }
    assert schemas == {"#/components/schemas/Error"}
    assert "ValidationError" not in str(contract)


def test_fields_that_a_validator_fills_in_are_not_required(contract: dict[str, Any]) -> None:
    schemas = contract["components"]["schemas"]
    assert schemas["JobCreate"]["required"] == ["model"]
    assert schemas["SupervisedHyperparameters"]["required"] == []


def test_a_parameter_is_absent_and_never_null(contract: dict[str, Any]) -> None:
    given = operations(contract).values()
    schemas = [parameter["schema"] for each in given for parameter in each.get("parameters", ())]
    assert "null" not in str(schemas)
    stream = operations(contract)["get /v1/fine_tuning/jobs/{job_id}/stream"]["parameters"]
    (header,) = [each["schema"] for each in stream if each["in"] == "header"]
    assert (header["type"], header["minimum"]) == ("integer", 0)


def test_the_filter_by_labels_is_a_documented_parameter(contract: dict[str, Any]) -> None:
    parameters = operations(contract)["get /v1/fine_tuning/jobs"]["parameters"]
    (labels,) = [each for each in parameters if each["name"] == "metadata"]
    assert (labels["in"], labels["style"], labels["explode"]) == ("query", "deepObject", True)
    jsonschema.validate({"team": "maths"}, labels["schema"])


def test_an_error_has_the_documented_schema(contract: dict[str, Any]) -> None:
    schema = contract["components"]["schemas"]["Error"]
    jsonschema.validate(NotFound("There is none.", param="file_id").body(), schema)
    jsonschema.validate(NotFound("There is none.").body(), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"detail": "Not Found"}, schema)


def test_the_document_names_the_routes_that_need_a_key(contract: dict[str, Any]) -> None:
    assert contract["components"]["securitySchemes"]["ApiKey"]["scheme"] == "bearer"
    open_to_all = [name for name, given in operations(contract).items() if "security" not in given]
    assert open_to_all == ["get /livez", "get /readyz", "get /metrics"]


def test_downloads_and_streams_name_their_media_types(contract: dict[str, Any]) -> None:
    found = operations(contract)
    adapter = found["get /v1/fine_tuning/jobs/{job_id}/adapter"]["responses"]
    stream = found["get /v1/fine_tuning/jobs/{job_id}/stream"]["responses"]
    assert list(adapter["206"]["content"]) == list(adapter["200"]["content"])
    assert list(adapter["200"]["content"]) == ["application/gzip"]
    assert {"206", "304", "416"} <= set(adapter)
    assert list(stream["200"]["content"]) == ["text/event-stream"]
    assert "204" in stream


@on_sqlite
def test_the_docs_page_loads_nothing_from_another_host_or_path_prefix(anonymous: TestClient) -> None:
    page = anonymous.get("/docs")
    assert page.status_code == 200
    loaded = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(loaded) == 3
    assert [path for path in loaded if anonymous.get(f"/{path}").status_code != 200] == []
    assert [path for path in loaded if not path.startswith("docs/assets/")] == []
    assert "url: 'openapi.json'" in page.text
    assert "://" not in page.text


@on_sqlite
def test_requests_of_the_docs_page_keep_the_path_prefix_of_a_proxy(anonymous: TestClient) -> None:
    (server,) = anonymous.get("/openapi.json").json()["servers"]
    assert urljoin("https://proxy/grpo/openapi.json", server["url"]) == "https://proxy/grpo/"
    assert urljoin("https://direct/openapi.json", server["url"]) == "https://direct/"


@on_sqlite
@pytest.mark.parametrize("path", ["/v1/fine_tuning/jobs/", "/v1/files/", "/livez/", "/docs/assets/none"])
def test_a_nearly_matching_path_is_a_404_in_our_shape(client: TestClient, path: str) -> None:
    assert error_of(client.get(path), 404)["type"] == "invalid_request_error"


def test_it_starts_on_an_empty_folder_and_is_not_ready(tmp_path: Path) -> None:
    with TestClient(create_app(settings_for(tmp_path / "new"))) as client:
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").status_code == 503
        key = f"grpo_{'x' * 16}_{'x' * 43}"
        assert client.get("/v1/files", headers={"authorization": f"Bearer {key}"}).status_code == 503


def test_it_starts_while_the_database_is_down(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, "postgresql://nobody@127.0.0.1:1/none")
    with TestClient(create_app(settings)) as client:
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").json()["checks"]["database"] == "no answer"
