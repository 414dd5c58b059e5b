"""Requests that are being answered: claimed, handed to a sampler, written down piece by piece.

A row that is gone means that nobody waits any more: the sampler is told to stop. On a machine with GPUs this
gives way to jobs: what is loaded is killed when one begins there.
Boundary: prompts and answers are handed on and never logged; engines are `samplers.py`'s.
"""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeVar

import structlog
from sqlalchemy.orm import Session

from grpo_engine.config.job import ModelSource
from grpo_engine.contract.errors import BaseChangedError
from grpo_engine.serve.protocol import Answer, Ask, Loaded, Piece, Refusal, Unloadable, Usage
from service.jobs.results.weights import Weights, WeightsMissing, find_weights
from service.platform.catalog import CatalogError
from service.platform.storage import StorageError
from service.platform.tables.serving import Generation
from service.serving import repository
from worker.attempt.attempt import Worker
from worker.attempt.fetch_weights import download_verified, fetch_weights
from worker.serving.model_processes import Heard, Sampler, Samplers

T = TypeVar("T")
logger = structlog.get_logger()

LEASE_SECONDS = 20.0
BEAT_SECONDS = 3.0
"""Between two renewals, and two words to the API that this one is there."""
PACE_SECONDS = 0.05
"""Of writing down what has come."""
MAX_OPEN = 16
"""Requests that are answered here at once."""
STOPPING = Refusal(code="worker_stopping", message="The worker is being stopped; try again.")
TRAINING = Refusal(code="workers_training", message="A training job needs the GPUs now; try again later.")
DIED = Refusal(code="sampler_died", message="The sampler ended while it was answering; try again.")
HUNG = Refusal(code="sampler_hung", message="The sampler did not answer any more and was ended; try again.")
BUSY = Refusal(code="worker_busy", message="Other models are in use on the worker; try again.")
UNSTORED = Refusal(code="storage_unavailable", message="The model's weights cannot be fetched; try again.")
UNLOADABLE = Refusal(
    code="model_unloadable", message="The worker cannot load this model; its log says why.", param="model"
)
CHANGED = Refusal(
    code=BaseChangedError.code,
    message="The base model has other weights now than when this model was trained on it.",
    param="model",
)
BROKEN = Refusal(code="worker_failed", message="The worker could not begin; its log says why.")


@dataclass
class Open:
    """A claimed request and what has not been written down yet."""

    row: Generation
    sampler: Sampler | None
    began_at: float = field(default_factory=monotonic)
    pieces: list[Piece] = field(default_factory=list)
    num_chunks: int = 0
    ending: Usage | Refusal | None = None


class Desk:
    """Everything that is being answered here."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.settings = worker.settings
        self.samplers = Samplers(worker.settings)
        self.open: dict[str, Open] = {}
        self._beaten_at = -BEAT_SECONDS
        self._is_training = False

    def round(self) -> None:
        """One look at everything. Raises SQLAlchemyError while the database is away."""
        if monotonic() - self._beaten_at >= BEAT_SECONDS or self.samplers:
            self._make_way()
        if monotonic() - self._beaten_at >= BEAT_SECONDS:
            self._beat()
        while not self._is_training and len(self.open) < MAX_OPEN and self._take_one():
            pass
        self._hear(PACE_SECONDS if self.samplers else self.settings.poll_seconds)
        self._write()
        self._tidy()

    def close(self, refusal: Refusal) -> None:
        """Ends all that is open. Raises SQLAlchemyError while the database is away."""
        self.samplers.close_all()
        for one in self.open.values():
            one.ending = one.ending or refusal
        self._write()

    def leave(self) -> None:
        """This worker answers no more."""
        self.close(STOPPING)
        with self.worker.database.statement() as session:
            repository.leave(session, self.worker.name)

    def _make_way(self) -> None:
        """GPUs are the jobs': what is loaded would take the memory that one counts on."""
        if not self.settings.gpus:
            return
        with self.worker.database.reading() as session:
            is_training = repository.trains_on(session, socket.gethostname())
        if is_training and not self._is_training:
            self.close(TRAINING)
        if is_training is not self._is_training:
            self._is_training = is_training
            self._beat()

    def _beat(self) -> None:
        with self.worker.database.transaction() as session:
            repository.announce(session, self.worker.name, is_training=self._is_training)
            held = repository.renew(session, self.worker.name, LEASE_SECONDS)
        self._beaten_at = monotonic()
        for one in list(self.open.values()):
            if (one.row.id, one.row.fence) not in held:
                self._drop(one)

    def _take_one(self) -> bool:
        models = None if self.samplers.has_room else self.samplers.models
        with self.worker.database.reading() as session:
            if not repository.somebody_waits(session):
                return False
        with self.worker.database.statement() as session:
            row = repository.claim(session, self.worker.name, LEASE_SECONDS, models)
        if row is None:
            return False
        one = self.open[row.id] = Open(row, None)
        try:
            self._hand_on(one, Ask.model_validate(row.ask))
        except WeightsMissing as gone:
            one.ending = Refusal(
                code="model_not_found", message=f"{gone}. {gone.hint}".strip(), param="model"
            )
        except CatalogError as error:
            logger.error("no catalogue", error=str(error))
            one.ending = BROKEN
        return True

    def _hand_on(self, one: Open, ask: Ask) -> None:
        tenant, model = one.row.tenant, one.row.model
        weights = find_weights(self._read, self.worker.catalog, tenant, model)
        one.sampler = self.samplers.of(model, weights, partial(self._fetch, weights, model))
        if one.sampler is None:
            one.ending = BUSY
        else:
            one.sampler.ask(ask)

    def _read(self, query: Callable[[Session], T]) -> T:
        with self.worker.database.reading() as session:
            return query(session)

    def _fetch(self, weights: Weights, model: str, folder: Path) -> ModelSource:
        download = partial(download_verified, self.worker.storage, patiently=lambda action: action())
        return fetch_weights(weights, model, folder, download)

    def _hear(self, seconds: float) -> None:
        """What the samplers have said; waits so long for the first word."""
        try:
            self._note(self.samplers.inbox.get(timeout=seconds))
            while True:
                self._note(self.samplers.inbox.get_nowait())
        except queue.Empty:
            return

    def _note(self, heard: Heard) -> None:
        sampler = heard.sampler
        sampler.heard_at = monotonic()
        match heard.said:
            case Answer() as answer:
                self._grow(answer)
            case Loaded():
                sampler.loaded()
            case ModelSource() as source if sampler in self.samplers:
                sampler.start(source, self.settings)
            case Unloadable() as reason:
                logger.error("model not loaded", model=sampler.model, reason=reason.message)
                self._end_all(sampler, CHANGED if reason.code == CHANGED.code else UNLOADABLE)
            case None:
                self._bury(sampler)
            case Exception() as error:
                self._end_all(sampler, _refusal_of(error))

    def _grow(self, answer: Answer) -> None:
        one = self.open.get(answer.id)
        if one is None or one.ending is not None:
            return
        one.pieces += answer.pieces
        one.ending = answer.usage or answer.refusal

    def _bury(self, sampler: Sampler) -> None:
        """Its process has ended; where we ended it, nobody waits for it."""
        if sampler in self.samplers:
            logger.warning("sampler died", model=sampler.model, log=sampler.last_words())
            self._end_all(sampler, DIED)

    def _end_all(self, sampler: Sampler, refusal: Refusal) -> None:
        for one in self.open.values():
            if one.sampler is sampler:
                one.ending = one.ending or refusal
        self.samplers.close(sampler)

    def _write(self) -> None:
        """What has come since the last time, all in one transaction; written again where that fails."""
        changed = [one for one in self.open.values() if one.pieces or one.ending is not None]
        if not changed:
            return
        with self.worker.database.transaction() as session:
            wanted = [_written(session, one) for one in changed]
        for one, is_wanted in zip(changed, wanted, strict=True):
            one.num_chunks += bool(one.pieces)
            one.pieces.clear()
            if one.ending is not None or not is_wanted:
                self._drop(one)

    def _drop(self, one: Open) -> None:
        """It is over, or nobody waits for it any more."""
        del self.open[one.row.id]
        if one.sampler is not None and one.row.id in one.sampler.open:
            one.sampler.used_at = monotonic()
            if one.ending is None:
                one.sampler.cancel(one.row.id)
            one.sampler.open.discard(one.row.id)
        _tell(one)

    def _tidy(self) -> None:
        for sampler in list(self.samplers):
            if sampler.has_hung:
                logger.error("sampler hangs", model=sampler.model)
                self._end_all(sampler, HUNG)
        self.samplers.close_idle()


def _written(session: Session, one: Open) -> bool:
    """False: nobody waits for it."""
    id, fence = one.row.id, one.row.fence
    if one.pieces:
        pieces = [piece.model_dump(mode="json", exclude_defaults=True) for piece in one.pieces]
        if not repository.add_chunk(session, id, fence, one.num_chunks + 1, pieces):
            return False
    match one.ending:
        case Usage() as usage:
            return repository.finish(session, id, fence, usage.model_dump())
        case Refusal() as refusal:
            return repository.fail(session, id, fence, refusal.model_dump())
    return True


def _refusal_of(error: Exception) -> Refusal:
    """Why weights could not be fetched."""
    if isinstance(error, WeightsMissing):
        return Refusal(code="model_not_found", message=f"{error}. {error.hint}".strip(), param="model")
    logger.error("weights not fetched", error=str(error), kind=type(error).__name__)
    return UNSTORED if isinstance(error, StorageError) else BROKEN


def _tell(one: Open) -> None:
    """One line about a request, with nothing of what was said."""
    usage = one.ending.model_dump() if isinstance(one.ending, Usage) else {}
    reason = one.ending.code if isinstance(one.ending, Refusal) else None
    ended = reason or ("answered" if usage else "not wanted any more")
    about = {"generation": one.row.id, "tenant": one.row.tenant, "model": one.row.model}
    logger.info("talked", **about, ended=ended, seconds=round(monotonic() - one.began_at, 2), **usage)
