"""Completes FastAPI's OpenAPI document with the service's errors, API key, media types and examples.

Boundary: documentation only; it does not change responses.
"""

from collections.abc import Container
from typing import Any

from service.platform.errors import (
    Conflict,
    Forbidden,
    InsufficientStorage,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    RangeNotSatisfiable,
    ServiceError,
    TooManyRequests,
    TooSlow,
    Unauthorized,
    Unavailable,
    Unprocessable,
)
from service.web.openapi_examples import add_example

Document = dict[str, Any]

JOBS = "/v1/fine_tuning/jobs"
JOB = f"{JOBS}/{{job_id}}"
PROBES = "/v1/fine_tuning/probes"
SUITES = "/v1/fine_tuning/suites/reasoning_gym"
GENERATING = (f"post {JOBS}", f"post {JOBS}/validate", f"post {JOB}/clone", f"post {PROBES}")
"""Operations whose body may name a `dataset`, which is generated and stored."""
SCHEME = "ApiKey"
DOWNLOADS = {
    "/v1/files/{file_id}/content": "application/octet-stream",
    f"{JOB}/adapter": "application/gzip",
    f"{JOB}/exports/{{export_id}}/content": "application/x-tar",
    f"{JOB}/checkpoints/{{checkpoint_id}}/content": "application/gzip",
    "/v1/fine_tuning/checkpoints/{checkpoint_id}/content": "application/gzip",
}
"""Media types of downloads, which support entity tags and ranges."""
TEXTS = {
    f"{JOB}/metrics.csv": "text/csv",
    f"{JOB}/rollouts.jsonl": "application/jsonl",
    f"{JOB}/rollouts/sft.jsonl": "application/jsonl",
    f"{JOB}/rollouts/dpo.jsonl": "application/jsonl",
    "/metrics": "text/plain",
}
TEXT = {"type": "string"}


def _object(properties: Document, *, optional: Container[str] = ()) -> Document:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": properties}


ERROR = {
    "message": TEXT,
    "type": TEXT,
    "param": {"type": ["string", "null"], "description": "The field that is wrong."},
    "code": {"type": "string", "description": "Stable code, for programs."},
    "problems": {
        "type": "array",
        "description": "All problems, up to 100, if there can be several.",
        "items": _object(
            {
                "param": TEXT,
                "message": TEXT,
                "alike": {
                    "type": "integer",
                    "description": "Problems of a job that differ by their line and numbers only.",
                },
            },
            optional=["alike"],
        ),
    },
}
SERVER_SENT_EVENT = _object(
    {
        "event": {"type": "string", "enum": ["metrics", "event", "status"]},
        "id": {"type": "string", "description": "The event's number, for `Last-Event-ID`."},
        "data": {"type": "string", "contentMediaType": "application/json"},
    }
)
_GENERATED = ("HTTPValidationError", "ValidationError")


def completed(document: Document) -> Document:
    """Complete FastAPI's document in place."""
    document["servers"] = [{"url": "./", "description": "Relative to the document, behind any path prefix."}]
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in _GENERATED:
        schemas.pop(name, None)
    schemas["Error"] = {"title": "Error", **_object({"error": _object(ERROR, optional=["problems"])})}
    for schema in schemas.values():
        _describe_constants(schema)
    scheme = {"type": "http", "scheme": "bearer", "description": "A key of `grpo keys create`."}
    components["securitySchemes"] = {SCHEME: scheme}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            _complete(f"{method} {path}", path, operation)
    return document


def _describe_constants(schema: Document) -> None:
    """Describe fields with one possible value, such as `type`."""
    for field in schema.get("properties", {}).values():
        if "const" in field:
            field.setdefault("description", f"Always `{field['const']}`.")


def _complete(name: str, path: str, operation: Document) -> None:
    operation["summary"] = operation["summary"].capitalize()
    for parameter in operation.get("parameters", ()):
        parameter["schema"] = _never_null(parameter["schema"])
    responses = operation["responses"]
    responses.pop("422", None)
    if path in DOWNLOADS:
        _describe_download(responses, DOWNLOADS[path])
    if path in TEXTS:
        responses["200"]["content"] = {TEXTS[path]: {"schema": TEXT}}
    if path.endswith("/stream"):
        responses["200"]["content"] = {"text/event-stream": {"itemSchema": SERVER_SENT_EVENT}}
        responses["204"] = {"description": "The job has ended, and there is no later event."}
    if path == "/readyz":
        responses["503"] = {**responses["200"], "description": "Not ready; `checks` says why."}
    if path.startswith("/v1/"):
        operation["security"] = [{SCHEME: []}]
        for error in _errors(name, operation):
            responses[str(error.status)] = _refusal(error)
    operation["responses"] = dict(sorted(responses.items()))
    add_example(name, operation)


def _never_null(schema: Document) -> Document:
    """Remove null from a parameter's type: it is only the endpoint's default, and no query can contain it."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return {**kinds[0], **rest} if len(kinds) == 1 else schema


def _errors(name: str, operation: Document) -> list[type[ServiceError]]:
    """The errors of an operation."""
    found: list[type[ServiceError]] = [InvalidRequest, Unauthorized, Forbidden, TooManyRequests, Unavailable]
    names_one = "{" in name or name in ("post /v1/chat/completions", "post /v1/completions")
    if names_one or any(given["name"] == "after" for given in operation.get("parameters", ())):
        found.append(NotFound)
    if "requestBody" in operation:
        found += [TooSlow, PayloadTooLarge]
    if name in (*GENERATING, f"post {JOB}/exports", f"get {SUITES}"):
        found.append(Unprocessable)
    if name in (*GENERATING, "post /v1/files"):
        found.append(InsufficientStorage)
    if name in (f"delete {JOB}", f"post {JOB}/shares"):
        found.append(Conflict)
    return found


def _refusal(error: type[ServiceError]) -> Document:
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": error.__doc__, "content": content}


def _describe_download(responses: Document, media_type: str) -> None:
    content = {media_type: {"schema": {"type": "string", "format": "binary"}}}
    descriptions = {"ETag": "SHA-256 in quotes.", "x-checksum-sha256": "Of the whole object."}
    headers = {name: {"description": text, "schema": TEXT} for name, text in descriptions.items()}
    responses["200"] = {"description": "The whole object.", "content": content, "headers": headers}
    responses["206"] = {"description": "The requested range.", "content": content, "headers": headers}
    responses["304"] = {"description": "`If-None-Match` names the current version."}
    responses["416"] = _refusal(RangeNotSatisfiable)
