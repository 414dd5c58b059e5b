"""What a shell completes: ids of jobs and files, names of models, as the service has them now.

Quick, and silent on failure: who presses Tab wants a word or nothing, no error and no wait.
"""

from __future__ import annotations

from typing import Any

import httpx
import typer

from service.cli.http.client import JOBS
from service.cli.options import Connection, key_of
from service.cli.terminal.errors import CommandError

SECONDS = 1.5
NEWEST = 100
"""The newest so many are offered."""

Words = list[tuple[str, str]]
"""What may stand there, and a word on it."""


def jobs(context: typer.Context, incomplete: str) -> Words:
    """Newest first."""
    found = [(job["id"], f"{job['status']} {job['model']}") for job in _items(context, JOBS)]
    return _beginning(incomplete, found)


def files(context: typer.Context, incomplete: str) -> Words:
    """Datasets and results, newest first."""
    found = [(file["id"], file["filename"]) for file in _items(context, "/v1/files")]
    return _beginning(incomplete, found)


def models(context: typer.Context, incomplete: str) -> Words:
    """Base models and fine-tuned ones."""
    found = [(model["id"], model["owned_by"]) for model in _items(context, "/v1/models")]
    return _beginning(incomplete, found)


def _beginning(text: str, words: Words) -> Words:
    return [(word, about) for word, about in words if word.startswith(text)]


def _items(context: typer.Context, path: str) -> list[dict[str, Any]]:
    # the options before the command are parsed by now, but nobody has made a Connection of them
    given = context.find_root().params
    try:
        connection = Connection(given["url"], given["api_key"])
        headers = {"Authorization": f"Bearer {key_of(connection)}"}
        answer = httpx.get(
            connection.url.rstrip("/") + path, params={"limit": NEWEST}, headers=headers, timeout=SECONDS
        )
        answer.raise_for_status()
        data: list[dict[str, Any]] = answer.json()["data"]
    except (CommandError, httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError):
        return []  # nothing is offered, as where a word has no completion
    return data
