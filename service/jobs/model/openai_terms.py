"""Converts a method into OpenAI's terms, and back.

Strict clients reject a whole job if their library does not define its grader type. Such a grader is therefore
shown as a `python` grader with all its own fields and its true type in `rule`. In the same way the method
`training_free` is shown as `reinforcement`, with all its own settings under that name and its true type in
`rule`. Jobs, patches and graders are accepted in this form.
"""

from collections.abc import Mapping
from typing import Any

OPENAI_TYPES = frozenset({"string_check", "text_similarity", "python", "score_model"})
"""Grader types with OpenAI's fields; strict clients keep additional fields. `multi` is not one of them,
because OpenAI's has a single grader."""


TRAINING_FREE = "training_free"


def in_openai_terms(method: Mapping[str, Any]) -> dict[str, Any]:
    """The method in a form that strict clients accept."""
    kind = method.get("type")
    if kind not in ("reinforcement", TRAINING_FREE):
        return dict(method)
    settings = method[kind]
    rule = {"rule": TRAINING_FREE} if kind == TRAINING_FREE else {}
    return {
        "type": "reinforcement",
        **rule,
        "reinforcement": {**settings, "grader": _stand_in(settings["grader"])},
    }


def _stand_in(grader: Mapping[str, Any]) -> dict[str, Any]:
    kind = grader["type"]
    if kind in OPENAI_TYPES and not _has_plain_parts(grader):
        return dict(grader)
    source = f"# A grader of type {kind!r}, which the service runs itself; its fields are beside this one."
    return {**grader, "type": "python", "name": grader.get("name") or kind, "source": source, "rule": kind}


def _has_plain_parts(grader: Mapping[str, Any]) -> bool:
    """Whether a judge's message has a part of type `text`, which OpenAI's graders do not have."""
    if grader["type"] != "score_model":
        return False
    contents = [message["content"] for message in grader["input"]]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [content])]
    return any(isinstance(part, Mapping) and part.get("type") == "text" for part in parts)


def from_openai_terms(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request or a patch, with its stand-in method and graders replaced by the original ones."""
    method = body.get("method")
    if not isinstance(method, Mapping):
        return dict(body)
    return {**body, "method": _with_own_grader(_with_own_type(method))}


def from_older_form(body: Mapping[str, Any]) -> dict[str, Any]:
    """A request in OpenAI's older form, which has supervised hyperparameters and no method, with a method."""
    if body.get("method") is not None:
        return dict(body)
    rest = {name: value for name, value in body.items() if name != "hyperparameters"}
    given = {"hyperparameters": body.get("hyperparameters") or {}}
    return {**rest, "method": {"type": "supervised", "supervised": given}}


def own_rule(grader: Any) -> Any:
    """The original grader of a stand-in; anything else unchanged."""
    if not isinstance(grader, Mapping) or grader.get("type") != "python":
        return grader
    if not isinstance(grader.get("rule"), str):
        return grader
    own = {name: value for name, value in grader.items() if name not in ("rule", "source")}
    return {**own, "type": grader["rule"]}


def _with_own_type(method: Mapping[str, Any]) -> dict[str, Any]:
    if method.get("type") != "reinforcement" or method.get("rule") != TRAINING_FREE:
        return dict(method)
    rest = {name: value for name, value in method.items() if name not in ("rule", "reinforcement")}
    return {**rest, "type": TRAINING_FREE, TRAINING_FREE: method.get("reinforcement")}


def _with_own_grader(method: dict[str, Any]) -> dict[str, Any]:
    """A patch need not name the method's type."""
    settings = {kind: method.get(kind) for kind in ("reinforcement", TRAINING_FREE)}
    return method | {
        kind: {**given, "grader": own_rule(given["grader"])}
        for kind, given in settings.items()
        if isinstance(given, Mapping) and "grader" in given
    }
