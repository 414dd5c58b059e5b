"""Queues requests to models: checks the model's owner, live workers and the tenant's limit.

Boundary: writes the row that a worker claims; `waiting.py` waits for the answer.
"""

import secrets
from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from grpo_engine.serve.protocol import Generate
from service.jobs.store.lineage import lineage_of
from service.platform.db import lock_tenant
from service.platform.errors import InvalidRequest, NotFound, Unavailable
from service.platform.tables.serving import Generation, GenerationState
from service.serving import repository
from service.serving.schemas import ChatRequest, CompletionRequest
from service.web.dependencies import CatalogDep, DatabaseDep, SettingsDep
from service.web.limits import check_chats

TRAINING_SECONDS = 60
"""`Retry-After` while the GPUs belong to jobs."""
NO_WORKER = "No worker answers requests now. Start one: `grpo up`, or `python -m worker.serving.chat`."
TRAINING = "The workers are training; on GPUs they answer only while no job runs. Try again later."


@dataclass(frozen=True)
class Chat:
    """Requests to the models of one deployment."""

    database: DatabaseDep
    catalog: CatalogDep
    settings: SettingsDep

    def submit(self, tenant: str, id: str, body: ChatRequest | CompletionRequest) -> None:
        """Queue the request for a worker.

        Raises NotFound for a model that is not the tenant's, TooManyRequests, and Unavailable if no worker
        would answer.
        """
        bases = self.catalog.names()
        command = _command(id, body)
        with self.database.transaction() as session:
            _check_model(session, tenant, body.model, bases)
            _check_workers(repository.live_workers(session))
            lock_tenant(session, tenant)
            check_chats(repository.num_open(session, tenant), self.settings)
            state = GenerationState.WAITING.value
            document = command.model_dump(mode="json")
            session.add(Generation(id=id, tenant=tenant, model=body.model, request=document, state=state))


def _check_model(session: Session, tenant: str, model: str, bases: list[str]) -> None:
    if model in bases:
        return
    lineage = lineage_of(session, tenant, model)
    if not lineage.ancestors:
        raise NotFound(f"There is no model {model}.", param="model", code="model_not_found")
    if lineage.ancestors[0].kind == "experiences":
        reason = f"{model} is the result of a training-free job and has no weights. Use its base model."
        raise InvalidRequest(reason, param="model", code="model_without_weights")
    if lineage.whole is None and lineage.root not in bases:
        reason = f"The base model of {model} is no longer in the catalogue."
        raise NotFound(reason, param="model", code="model_not_found")


def _check_workers(are_training: list[bool]) -> None:
    """Raise Unavailable if no worker answers, with a header against retries: that does not change soon."""
    if not are_training:
        raise Unavailable(NO_WORKER, code="no_chat_worker", headers={"x-should-retry": "false"})
    if all(are_training):
        headers = {"Retry-After": str(TRAINING_SECONDS), "x-should-retry": "false"}
        raise Unavailable(TRAINING, code="workers_training", headers=headers)


def _command(id: str, body: ChatRequest | CompletionRequest) -> Generate:
    given: dict[str, Any] = {
        "id": id,
        "n": body.n or 1,
        "stop": body.stops,
        "seed": secrets.randbits(63) if body.seed is None else body.seed % 2**63,
        "temperature": 1.0 if body.temperature is None else body.temperature,
    }
    if isinstance(body, CompletionRequest):
        prompt = body.prompt if isinstance(body.prompt, str) else body.prompt[0]
        return Generate(**given, prompt=prompt, max_tokens=body.max_tokens)
    messages = tuple(message.model_dump(exclude_none=True) for message in body.messages)
    limit = body.max_completion_tokens or body.max_tokens
    return Generate(**given, messages=messages, max_tokens=limit, logprobs=bool(body.logprobs))
