"""The tenancy matrix's requests: each operation of the OpenAPI document with each place it can lead to."""

import re
from dataclasses import dataclass
from typing import Any

import httpx

from tests.service.web.tenancy import GRADERS, JOBS, Place, World, body_of

PUBLIC = {"/livez", "/readyz", "/metrics"}
"""Without a key, and with nothing of any tenant in it."""
KEY_ROUTES = {"/v1/keys", "/v1/keys/current", "/v1/keys/{key_id}", "/v1/keys/{key_id}/rotate", "/v1/tenants"}
"""About keys themselves: `tests/service/keys/` has their matrix."""
LOOKING_POSTS = {
    *(f"post {JOBS}/validate", f"post {JOBS}/{{job_id}}/rollouts/rescore"),
    *(f"post {GRADERS}/validate", f"post {GRADERS}/run"),
    *("post /v1/chat/completions", "post /v1/completions"),
}
"""They change nothing, so that a key that may only read may send them."""
VARYING_HEADERS = {"x-request-id", "date"}
MOVING = re.compile(
    r'"(seconds_remaining|estimated_finish|execution_time|created)":[0-9.e-]+|"id":"(chat)?cmpl-\w+"'
)
"""What is another number each time."""


@dataclass(frozen=True)
class Call:
    """One request of the matrix."""

    method: str
    template: str
    place: Place

    @property
    def operation(self) -> str:
        return f"{self.method} {self.template}"

    @property
    def writes(self) -> bool:
        return self.method != "get" and self.operation not in LOOKING_POSTS

    def __str__(self) -> str:
        return f"{self.method} {self.template.format(**self.place.real)}"


def calls_of(contract: dict[str, Any], found: World) -> list[Call]:
    """Each operation with each place it can lead to."""
    calls = []
    for template, methods in contract.items():
        parameters = set(re.findall(r"\{(\w+)\}", template))
        places = found.places_of(parameters) if parameters else [Place({}, {})]
        calls += [Call(method, template, place) for method in methods for place in places]
    return [call for call in calls if call.template not in PUBLIC | KEY_ROUTES]


def send(
    client: httpx.Client,
    call: Call,
    ids: dict[str, str],
    *,
    unknown: bool = False,
    who: str = "",
) -> httpx.Response:
    """The answer, of a live stream its beginning.

    `unknown`: with the unknown id; `who`: prefix of the names of objects in the body.
    """
    path = call.template.format(**(call.place.unknown if unknown else call.place.real))
    request = client.build_request(call.method.upper(), path, **(body_of(call.operation, ids, who) or {}))
    answer = client.send(request, stream=True)
    is_live = answer.headers.get("content-type", "").startswith("text/event-stream")
    answer._content = next(answer.iter_bytes(), b"")[:12] if is_live else answer.read()
    answer.close()
    return answer


def visible(answer: httpx.Response, ids: dict[str, str]) -> tuple[int, str, dict[str, str]]:
    """All that a response shows, except the requested ids."""
    headers = {name: text for name, text in answer.headers.items() if name not in VARYING_HEADERS}
    text = answer.content.decode(errors="replace")
    for one in ids.values():
        text = text.replace(one, "…")
    return answer.status_code, MOVING.sub("", text), headers


def code_of(answer: httpx.Response) -> str | None:
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    return (answer.json().get("error") or {}).get("code") if is_json and answer.content else None


def head(client: httpx.Client, call: Call) -> httpx.Response:
    return client.head(call.template.format(**call.place.real))
