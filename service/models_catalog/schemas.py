"""OpenAI's `model` object."""

from typing import Literal

from pydantic import BaseModel


class ModelRead(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    """`catalogue` for base models, otherwise the tenant."""


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelRead]
    has_more: Literal[False] = False


class ModelDeleted(BaseModel):
    id: str
    object: Literal["model"] = "model"
    deleted: Literal[True] = True
