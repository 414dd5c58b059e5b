"""Write `reference/openai-compatibility.md`: the fine-tuning methods of OpenAI's client.

    python -m docs.generate_compatibility

Methods come from the installed client, routes from the requests that it sends. `CALLS` lists the supported
methods, `ABSENT` the others with the reason. `test_compatibility.py` makes the same calls against a running
service. Boundary: writing the page needs no service.
"""

import contextlib
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import openai
from openai import OpenAI
from openai._resource import SyncAPIResource

PAGE = Path(__file__).parent / "reference" / "openai-compatibility.md"
RESOURCES = ("files", "fine_tuning", "models", "webhooks")
NOT_METHODS = ("with_raw_response", "with_streaming_response")
GRADER: Any = {
    "type": "string_check",
    "name": "exact",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
}
METHOD: Any = {
    "type": "reinforcement",
    "reinforcement": {"grader": GRADER, "hyperparameters": {"max_completion_tokens": 16}},
}


@dataclass(frozen=True)
class Things:
    """Ids and values that the calls use."""

    file: str = "{file_id}"
    spare_file: str = "{file_id}"
    """A file that no job needs."""
    job: str = "{job_id}"
    queued_job: str = "{job_id}"
    paused_job: str = "{job_id}"
    model: str = "{model}"
    checkpoint: str = "{checkpoint}"
    webhook: str = "{webhook_id}"
    url: str = "https://example.com/hook"
    rows: bytes = b"{}\n"
    base_model: str = "model"
    signed: tuple[str, dict[str, str], str] = ("{}", {}, "")
    """Body, headers and secret of an event."""


Call = Callable[[OpenAI, Things], Any]


@dataclass(frozen=True)
class Known:
    """How to call a method, and a note for its row."""

    call: Call
    note: str = ""


EVENTS: Any = ["fine_tuning.job.succeeded"]
CALLS: dict[str, Known] = {
    "files.create": Known(
        lambda c, it: c.files.create(file=("rows.jsonl", it.rows), purpose="fine-tune"),
        "purpose `fine-tune` only; `expires_after` is kept",
    ),
    "files.list": Known(lambda c, it: c.files.list(purpose="fine-tune", limit=5)),
    "files.retrieve": Known(lambda c, it: c.files.retrieve(it.file)),
    "files.content": Known(lambda c, it: c.files.content(it.file), "with ETag and ranges"),
    "files.retrieve_content": Known(lambda c, it: c.files.retrieve_content(it.file), "deprecated by OpenAI"),
    "files.wait_for_processing": Known(
        lambda c, it: c.files.wait_for_processing(it.file),
        "returns at once: files are processed when they are uploaded",
    ),
    "fine_tuning.alpha.graders.validate": Known(
        lambda c, it: c.fine_tuning.alpha.graders.validate(grader=GRADER)
    ),
    "fine_tuning.alpha.graders.run": Known(
        lambda c, it: c.fine_tuning.alpha.graders.run(grader=GRADER, item={"answer": "4"}, model_sample="4")
    ),
    "fine_tuning.jobs.create": Known(
        lambda c, it: c.fine_tuning.jobs.create(model=it.base_model, training_file=it.file, method=METHOD),
        "methods `reinforcement` and `supervised`; a model from the catalogue",
    ),
    "fine_tuning.jobs.list": Known(lambda c, it: c.fine_tuning.jobs.list(limit=5, metadata={"team": "a"})),
    "fine_tuning.jobs.retrieve": Known(lambda c, it: c.fine_tuning.jobs.retrieve(it.job)),
    "fine_tuning.jobs.list_events": Known(
        lambda c, it: c.fine_tuning.jobs.list_events(it.job, limit=5), "newest first"
    ),
    "fine_tuning.jobs.checkpoints.list": Known(
        lambda c, it: c.fine_tuning.jobs.checkpoints.list(it.job, limit=5), "newest first"
    ),
    "fine_tuning.jobs.pause": Known(lambda c, it: c.fine_tuning.jobs.pause(it.queued_job)),
    "fine_tuning.jobs.resume": Known(lambda c, it: c.fine_tuning.jobs.resume(it.paused_job)),
    "fine_tuning.jobs.cancel": Known(lambda c, it: c.fine_tuning.jobs.cancel(it.queued_job)),
    "models.list": Known(lambda c, it: c.models.list(), "the catalogue and your own"),
    "models.retrieve": Known(lambda c, it: c.models.retrieve(it.model)),
    "webhooks.create": Known(
        lambda c, it: c.webhooks.create(name="ops", url=it.url, event_types=EVENTS),
        "events of fine-tuning jobs",
    ),
    "webhooks.list": Known(lambda c, it: c.webhooks.list(limit=5)),
    "webhooks.retrieve": Known(lambda c, it: c.webhooks.retrieve(it.webhook)),
    "webhooks.update": Known(lambda c, it: c.webhooks.update(it.webhook, name="on call")),
    "webhooks.rotate_secret": Known(
        lambda c, it: c.webhooks.rotate_secret(it.webhook),
        "the old secret stays valid for a day by default",
    ),
    "webhooks.test": Known(lambda c, it: c.webhooks.test(it.webhook, event_type=EVENTS[0])),
    "webhooks.event_types.list": Known(lambda c, it: c.webhooks.event_types.list()),
    "webhooks.unwrap": Known(
        lambda c, it: c.webhooks.unwrap(it.signed[0], it.signed[1], secret=it.signed[2]),
        "verifies the signatures of this service",
    ),
    "webhooks.verify_signature": Known(
        lambda c, it: c.webhooks.verify_signature(it.signed[0], it.signed[1], secret=it.signed[2]),
        "verifies the signatures of this service",
    ),
    "webhooks.delete": Known(lambda c, it: c.webhooks.delete(it.webhook)),
    "models.delete": Known(
        lambda c, it: c.models.delete(it.model), "your own models, with all their weights"
    ),
    "files.delete": Known(
        lambda c, it: c.files.delete(it.spare_file), "not while an unfinished job needs it"
    ),
}
"""The calls, in an order in which each can be made after the previous ones."""
SHARING = "weights are downloaded, not shared between projects: `GET …/jobs/{id}/adapter`"
PERMISSIONS = "fine_tuning.checkpoints.permissions"
ABSENT: dict[str, Known] = {
    f"{PERMISSIONS}.create": Known(
        lambda c, it: list(c.fine_tuning.checkpoints.permissions.create(it.checkpoint, project_ids=["p"])),
        SHARING,
    ),
    f"{PERMISSIONS}.list": Known(
        lambda c, it: list(c.fine_tuning.checkpoints.permissions.list(it.checkpoint)), SHARING
    ),
    f"{PERMISSIONS}.retrieve": Known(
        lambda c, it: c.fine_tuning.checkpoints.permissions.retrieve(it.checkpoint), SHARING
    ),
    f"{PERMISSIONS}.delete": Known(
        lambda c, it: c.fine_tuning.checkpoints.permissions.delete(
            "{permission_id}", fine_tuned_model_checkpoint=it.checkpoint
        ),
        SHARING,
    ),
}


def public_methods() -> list[str]:
    """Dotted names of the public methods of `RESOURCES`."""
    client = OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none")
    return sorted(name for root in RESOURCES for name in _methods(getattr(client, root), root))


def _methods(resource: SyncAPIResource, path: str) -> Iterator[str]:
    for name in dir(type(resource)):
        if name.startswith("_") or name in NOT_METHODS:
            continue
        found = inspect.getattr_static(type(resource), name)
        if isinstance(found, functools.cached_property | property):
            inner = getattr(resource, name)
            if isinstance(inner, SyncAPIResource):
                yield from _methods(inner, f"{path}.{name}")
        elif inspect.isfunction(found):
            yield f"{path}.{name}"


LOCAL = ("webhooks.unwrap", "webhooks.verify_signature")
"""Methods that send no request."""


def route_of(name: str, call: Call) -> str:
    """Verb and path of the first request."""
    if name in LOCAL:
        return "none"
    sent: list[httpx2.Request] = []

    def record(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        raise httpx2.ConnectError("only the request is needed")

    with (
        httpx2.Client(transport=httpx2.MockTransport(record)) as transport,
        OpenAI(base_url="http://host/v1", api_key="none", max_retries=0, http_client=transport) as client,
        contextlib.suppress(openai.APIConnectionError),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", DeprecationWarning)
        call(client, Things())
    return f"`{sent[0].method} {sent[0].url.path}`"


def page() -> str:
    """The whole page."""
    lines = [
        f"| `{name}` | {route_of(name, known.call)} | {'yes' if name in CALLS else 'no'} | {known.note} |"
        for name, known in sorted((CALLS | ABSENT).items())
    ]
    return (
        HEAD.format(version=openai.__version__.partition(".")[0], works=len(CALLS), all=len(CALLS | ABSENT))
        + "\n".join(lines)
        + TAIL
    )


HEAD = """# OpenAI compatibility

Generated by `python -m docs.generate_compatibility` from the installed client, openai {version}: every
public method of `files`, `fine_tuning`, `models` and `webhooks`; {works} of {all} are supported. The
tests make each call through the unmodified client against a running service: a supported method returns
OpenAI's type, and the others return a 404 in OpenAI's shape. The asynchronous client sends the same requests.

| method | request | supported | notes |
|---|---|---|---|
"""
TAIL = """

For the fields of a request see [moving from OpenAI](../write-a-job/from-openai.md). Call routes that OpenAI
does not have with `client.get("/fine_tuning/jobs/…/metrics", cast_to=object)`; `/docs` lists them.
"""


def main() -> int:
    missing = set(public_methods()) ^ (CALLS | ABSENT).keys()
    if missing:
        print(
            f"CALLS and ABSENT differ from the installed client: {', '.join(sorted(missing))}",
            file=sys.stderr,
        )
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
