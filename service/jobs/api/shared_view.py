"""What a shared link sees of a job: no values of headers, and only the host names of its URLs.

Servers repeat paths and keys in their answers, which rollouts and events contain, so all texts are searched.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel
from sqlalchemy import select

from service.jobs.results.manifest import HIDDEN, is_schema, without_secrets
from service.platform.db import Database
from service.platform.principal import Principal
from service.platform.tables.core import Job

T = TypeVar("T")
View = Callable[[Any], Any]
"""Converts bodies of responses and JSON values to what a key may see."""
URL_FIELDS = ("url", "server_url")
"""Fields with a URL: `url` of graders, tools and environments, `server_url` of MCP servers."""
MIN_CHARACTERS = 8
"""A shorter URL, path or header is no secret, and may be a part of any text."""


def shown_to(principal: Principal, database: Database, answer: T) -> T:
    """The body of a response, or a JSON value, as this key may see it."""
    shown: T = view_of(principal, database)(answer)
    return shown


def view_of(principal: Principal, database: Database) -> View:
    """The view of the key; an ordinary key sees everything."""
    if principal.job_id is None:
        return lambda answer: answer
    with database.reading() as session:
        method = session.scalar(select(Job.method).where(Job.id == principal.job_id))
    return _SharedView(dict(_replacements(method)))


class _SharedView:
    """`replacements`: text → what a shared link sees instead."""

    def __init__(self, replacements: Mapping[str, str]) -> None:
        self._replacements = replacements
        longest_first = sorted(replacements, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def __call__(self, value: Any) -> Any:
        if isinstance(value, BaseModel):
            return value.model_copy(update={name: self(part) for name, part in value})
        if isinstance(value, Mapping):
            return {name: self(part) for name, part in without_secrets(value).items()}
        if isinstance(value, list | tuple):
            return [self(part) for part in value]
        if type(value) is str:
            return self._pattern.sub(lambda found: self._replacements[found[0]], value)
        return value


def _replacements(value: Any) -> Iterator[tuple[str, str]]:
    """The URLs and headers beneath a method, and what is shown instead."""
    if isinstance(value, list | tuple):
        for part in value:
            yield from _replacements(part)
    if not isinstance(value, Mapping):
        return
    for name, part in value.items():
        if is_schema(value, name):
            continue
        if name in URL_FIELDS and isinstance(part, str):
            yield from _of_url(part)
        elif name == "headers" and isinstance(part, Mapping):
            words = " ".join(each for each in part.values() if isinstance(each, str)).split()
            yield from ((word, HIDDEN) for word in words if len(word) >= MIN_CHARACTERS)
        else:
            yield from _replacements(part)


def _of_url(url: str) -> Iterator[tuple[str, str]]:
    if len(url) < MIN_CHARACTERS:
        return
    try:
        parts = urlsplit(url)
    except ValueError:  # no URL: a user's own field has the same name
        yield url, HIDDEN
        return
    yield url, parts.hostname or HIDDEN
    for text in (parts.path, parts.query, f"{parts.path}?{parts.query}"):
        if len(text) >= MIN_CHARACTERS:
            yield text, HIDDEN
