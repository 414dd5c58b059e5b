"""Answers written where they are made: a model becomes JSON in its endpoint's own thread.

FastAPI checks and renders what an endpoint returns in two more steps, one of them in another thread, which
costs a small answer as much as the database does. Boundary: for models of ours, which are right by
construction; the route still names its `response_model`, for the contract.
"""

from __future__ import annotations

from collections.abc import Mapping

from fastapi import Response
from pydantic import BaseModel


def answer(model: BaseModel, headers: Mapping[str, str] | None = None) -> Response:
    """A successful answer."""
    return Response(model.model_dump_json(), media_type="application/json", headers=headers)
