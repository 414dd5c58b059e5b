"""The base class of request bodies."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class RequestBody(BaseModel):
    """Refuses unknown fields; the docstrings of its fields are their descriptions in `/openapi.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True)
