"""OpenAI's `model` object."""

from typing import Literal

from pydantic import BaseModel

from service.web.validation import RequestBody


class FitsRead(BaseModel):
    """Whether training fits the memory of a worker's GPU or, without a GPU, of its machine."""

    lora: bool | None = None
    """Null: no worker is known, the weights are not here yet, or it depends on the job's settings."""
    full: bool | None = None


class ModelRead(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    """Unix seconds when it was added or trained; 0: unknown."""
    owned_by: str
    """`catalogue` for base models, otherwise the tenant."""
    size_bytes: int | None = None
    """Size of the weights or, for a fine-tuned model, of its archive. Null: unknown on this machine."""
    context_length: int | None = None
    """Tokens of prompt and completion together."""
    family: str | None = None
    """The architecture's name in transformers, such as `qwen3`."""
    fits: FitsRead = FitsRead()
    parent: str | None = None
    """The model that training started from; null for a base model."""
    job_id: str | None = None
    """The job that trained it."""


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelRead]
    has_more: Literal[False] = False
    hub_models: bool = False
    """Whether models of the Hugging Face hub can be added with `POST /v1/models`."""


class ModelAdd(RequestBody):
    """Body of `POST /v1/models`."""

    id: str
    """Id on the Hugging Face hub, such as `Qwen/Qwen3-0.6B`."""


class ModelDeleted(BaseModel):
    id: str
    object: Literal["model"] = "model"
    deleted: Literal[True] = True
