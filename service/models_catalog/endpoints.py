"""`/v1/models`. Names contain slashes and colons, so the id is the rest of the path."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path

from service.models_catalog.schemas import ModelAdd, ModelDeleted, ModelList, ModelRead
from service.models_catalog.service import Models
from service.web.auth import Reader, Writer

router = APIRouter(prefix="/v1/models", tags=["models"])


ModelName = Annotated[str, Path(description="Name of the model; it may contain slashes and colons.")]
ModelsDep = Annotated[Models, Depends()]


@router.get("")
def list_models(principal: Reader, models: ModelsDep) -> ModelList:
    """Base models, then your fine-tuned models."""
    return ModelList(data=models.list(principal.tenant), hub_models=models.settings.hub_models)


@router.post("")
def add_model(body: ModelAdd, principal: Writer, models: ModelsDep) -> ModelRead:
    """Add a model of the hub as a base model, if the operator allows that. Its first job downloads it."""
    return models.add(principal, body.id)


@router.get("/{model:path}")
def retrieve_model(model: ModelName, principal: Reader, models: ModelsDep) -> ModelRead:
    """A base model of the catalogue, or one of your fine-tuned models."""
    return models.read(principal.tenant, model)


@router.delete("/{model:path}")
def delete_model(model: ModelName, principal: Writer, models: ModelsDep) -> ModelDeleted:
    """Delete a fine-tuned model and its weights."""
    return models.delete(principal, model)
