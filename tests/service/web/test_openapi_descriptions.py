"""`/openapi.json` describes every parameter and every field of a request."""

from collections.abc import Iterator
from typing import Any

import pytest

from service.app import create_app
from service.settings import Settings

Schema = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app(Settings()).openapi()


def fields_of(schema: Schema, place: str, schemas: dict[str, Schema], seen: set[str]) -> Iterator[Schema]:
    """The schema's fields, with those of all schemas inside it, each with its place as `name`."""
    if "$ref" in schema:
        place = schema["$ref"].rsplit("/", 1)[1]
        if place not in seen:
            seen.add(place)
            yield from fields_of(schemas[place], place, schemas, seen)
        return
    for name, field in schema.get("properties", {}).items():
        yield {**field, "name": f"{place}.{name}"}
        yield from fields_of(field, f"{place}.{name}", schemas, seen)
    inner = [schema[key] for key in ("items", "additionalProperties") if isinstance(schema.get(key), dict)]
    inner += [each for key in ("anyOf", "oneOf", "allOf", "prefixItems") for each in schema.get(key, ())]
    for each in inner:
        yield from fields_of(each, place, schemas, seen)


def test_every_field_of_a_request_has_a_description(document: dict[str, Any]) -> None:
    schemas, seen = document["components"]["schemas"], set[str]()
    bodies = {
        f"{method} {path}": content["schema"]
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for content in operation.get("requestBody", {}).get("content", {}).values()
    }
    fields = [field for place, body in bodies.items() for field in fields_of(body, place, schemas, seen)]
    assert len(fields) > 300
    assert [field["name"] for field in fields if not field.get("description")] == []


def test_every_parameter_has_a_description(document: dict[str, Any]) -> None:
    parameters = [
        (f"{method} {path} {parameter['name']}", parameter.get("description"))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for parameter in operation.get("parameters", ())
    ]
    assert len(parameters) > 100
    assert [name for name, description in parameters if not description] == []


def operations_with(document: dict[str, Any], status: str) -> set[str]:
    return {
        f"{method} {path}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if status in operation["responses"]
    }


def test_the_operations_that_may_conflict_say_so(document: dict[str, Any]) -> None:
    job = "/v1/fine_tuning/jobs/{job_id}"
    assert operations_with(document, "409") == {f"delete {job}", f"post {job}/shares"}


def test_the_operations_that_generate_datasets_say_what_may_be_missing(document: dict[str, Any]) -> None:
    tuning = "/v1/fine_tuning"
    bodies = ("jobs", "jobs/validate", "jobs/{job_id}/clone", "probes")
    generating = {f"post {tuning}/{path}" for path in bodies}
    others = {f"post {tuning}/jobs/{{job_id}}/exports", f"get {tuning}/suites/reasoning_gym"}
    assert operations_with(document, "422") == generating | others
    assert operations_with(document, "507") == generating | {"post /v1/files"}


def test_a_known_export_has_the_schema_of_a_new_one(document: dict[str, Any]) -> None:
    responses = document["paths"]["/v1/fine_tuning/jobs/{job_id}/exports"]["post"]["responses"]
    assert responses["200"]["content"] == responses["201"]["content"]
