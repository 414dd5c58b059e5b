"""A method in OpenAI's terms, and back.

Strict clients refuse a whole job for a grader type that their library does not know. A rule that is not one
of OpenAI's is therefore answered as a `python` grader with all its own fields, its true type in `rule`; a
job that is sent that way is understood.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

OPENAI_TYPES = frozenset({"string_check"})
"""Grader types whose fields are exactly OpenAI's."""


def in_openai_terms(method: Mapping[str, Any]) -> dict[str, Any]:
    """The method as strict clients can read it."""
    if method.get("type") != "reinforcement":
        return dict(method)
    settings = method["reinforcement"]
    return {**method, "reinforcement": {**settings, "grader": _stand_in(settings["grader"])}}


def _stand_in(grader: Mapping[str, Any]) -> dict[str, Any]:
    kind = grader["type"]
    if kind in OPENAI_TYPES:
        return dict(grader)
    source = f"# A rule of type {kind!r}, which the service runs itself; its fields are beside this one."
    return {**grader, "type": "python", "name": grader.get("name") or kind, "source": source, "rule": kind}


def from_openai_terms(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request whose grader is such a stand-in → the same with the rule itself."""
    method = body.get("method")
    settings = method.get("reinforcement") if isinstance(method, Mapping) else None
    grader = settings.get("grader") if isinstance(settings, Mapping) else None
    if not (isinstance(method, Mapping) and isinstance(settings, Mapping) and isinstance(grader, Mapping)):
        return dict(body)
    if grader.get("type") != "python" or not isinstance(grader.get("rule"), str):
        return dict(body)
    own = {name: value for name, value in grader.items() if name not in ("rule", "source")}
    rule = {**own, "type": grader["rule"]}
    return {**body, "method": {**method, "reinforcement": {**settings, "grader": rule}}}
