"""The query parameter `metadata` of the list of jobs, a deep object, which FastAPI does not support."""

import re
from typing import Any

from fastapi import Request

from service.jobs.model.schemas import MAX_LABELS
from service.platform.errors import InvalidRequest

_LABEL = re.compile(r"metadata\[(.+)\]", re.DOTALL)
PARAMETER: dict[str, Any] = {
    "name": "metadata",
    "in": "query",
    "style": "deepObject",
    "explode": True,
    "description": "Labels that the jobs have: `metadata[k]=v`; or `metadata=null`: jobs without labels.",
    "schema": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "propertyNames": {"minLength": 1},
        "maxProperties": MAX_LABELS,
    },
}
"""Its description in the OpenAPI document."""


def labels_of(request: Request) -> dict[str, str] | None:
    """The labels to match; empty: jobs without labels; None: any. Raises InvalidRequest for another form."""
    given = [pair for pair in request.query_params.multi_items() if pair[0].startswith("metadata")]
    if given == [("metadata", "null")]:
        return {}
    found: dict[str, str] = {}
    for name, value in given:
        match = _LABEL.fullmatch(name)
        if match is None or match[1] in found:
            message = "metadata: write metadata[key]=value, each key once, or metadata=null."
            raise InvalidRequest(message, param="metadata")
        found[match[1]] = value
    if len(found) > MAX_LABELS:
        raise InvalidRequest(f"metadata: a job has at most {MAX_LABELS} pairs.", param="metadata")
    return found or None
