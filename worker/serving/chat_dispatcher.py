"""Claims chat requests, passes them to a model process and writes the answer piece by piece.

If a request's row is gone, its client has left, and the model process cancels it. On a machine with GPUs,
jobs take precedence: when a job starts, loaded models are ended.
Boundary: prompts and answers are passed on and never logged; processes are in `model_processes.py`.
"""

import queue
import socket
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic

import structlog
from sqlalchemy.orm import Session

from grpo_engine.config.job import ModelSource
from grpo_engine.contract.errors import BaseChangedError
from grpo_engine.serve.protocol import Answer, Generate, Loaded, Piece, Refusal, Unloadable, Usage
from service.hub.child_process import download_model
from service.hub.models import HubError
from service.jobs.results.weights import ModelParts, WeightsMissing, model_parts
from service.jobs.store.lineage import lineage_of
from service.platform.catalog import CatalogEntry, CatalogError
from service.platform.storage import StorageError
from service.platform.tables.serving import Generation
from service.serving import repository
from worker.attempt.attempt import Worker
from worker.attempt.fetch_weights import fetch_weights
from worker.launchers.run_files import LocalRunFiles
from worker.serving.model_processes import Message, ModelProcess, ModelProcesses

logger = structlog.get_logger()

LEASE_SECONDS = 20.0
BEAT_SECONDS = 3.0
"""Time between two lease renewals and announcements to the API."""
PACE_SECONDS = 0.05
"""Time between two writes of received pieces."""
MAX_OPEN = 16
"""Maximum concurrent requests of this worker."""
STOPPING = Refusal(code="worker_stopping", message="The worker is shutting down; try again.")
TRAINING = Refusal(code="workers_training", message="A training job is using the GPUs; try again later.")
DIED = Refusal(code="sampler_died", message="The model's process ended while it was answering; try again.")
HUNG = Refusal(
    code="sampler_hung", message="The model's process stopped responding and was ended; try again."
)
BUSY = Refusal(code="worker_busy", message="All model slots of the worker are in use; try again.")
UNSTORED = Refusal(code="storage_unavailable", message="The model's weights could not be fetched; try again.")
UNLOADABLE = Refusal(
    code="model_unloadable", message="The worker could not load this model; see its log.", param="model"
)
CHANGED = Refusal(
    code=BaseChangedError.code,
    message="The base model's weights have changed since this model was trained.",
    param="model",
)
BROKEN = Refusal(code="worker_failed", message="The worker could not start; see its log.")


@dataclass
class OpenRequest:
    """A claimed request and its unwritten pieces."""

    row: Generation
    process: ModelProcess | None
    started_at: float = field(default_factory=monotonic)
    pieces: list[Piece] = field(default_factory=list)
    num_chunks: int = 0
    ending: Usage | Refusal | None = None


class ChatDispatcher:
    """The open requests of this worker and their model processes."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.settings = worker.settings
        self.processes = ModelProcesses(worker.settings)
        self.open: dict[str, OpenRequest] = {}
        self._beaten_at = -BEAT_SECONDS
        self._is_training = False

    def round(self) -> None:
        """Claim, receive, write, clean up. Raises SQLAlchemyError if the database is unavailable."""
        is_beat_due = monotonic() - self._beaten_at >= BEAT_SECONDS
        if is_beat_due or self.processes:
            self._yield_gpus()
        if is_beat_due:
            self._beat()
        while not self._is_training and len(self.open) < MAX_OPEN and self._claim_one():
            pass
        self._receive(PACE_SECONDS if self.processes else self.settings.poll_seconds)
        self._write()
        self._close_hung_and_idle()

    def close(self, refusal: Refusal) -> None:
        """End all open requests. Raises SQLAlchemyError if the database is unavailable."""
        self.processes.close_all()
        for request in self.open.values():
            request.ending = request.ending or refusal
        self._write()

    def leave(self) -> None:
        """End all open requests and deregister this worker. Raises SQLAlchemyError."""
        self.close(STOPPING)
        with self.worker.database.transaction() as session:
            repository.leave(session, self.worker.name)

    def _yield_gpus(self) -> None:
        """Free the GPUs for a job that has started; loaded models would take the memory that it expects."""
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
        for request in list(self.open.values()):
            if (request.row.id, request.row.fence) not in held:
                self._drop(request)

    def _claim_one(self) -> bool:
        models = None if self.processes.has_room else self.processes.models
        with self.worker.database.reading() as session:
            if not repository.has_waiting(session):
                return False
        with self.worker.database.transaction() as session:
            row = repository.claim(session, self.worker.name, LEASE_SECONDS, models)
        if row is None:
            return False
        request = self.open[row.id] = OpenRequest(row, None)
        try:
            self._dispatch(request, Generate.model_validate(row.request))
        except (WeightsMissing, CatalogError) as error:
            request.ending = _refusal_of(error)
        return True

    def _dispatch(self, request: OpenRequest, command: Generate) -> None:
        tenant, model = request.row.tenant, request.row.model
        with self.worker.database.reading() as session:
            lineage = lineage_of(session, tenant, model)
        parts = model_parts(lineage, self.worker.catalog)
        request.process = self.processes.of(model, parts, partial(self._fetch, parts, model))
        if request.process is None:
            request.ending = BUSY
        else:
            request.process.generate(command)

    def _fetch(self, parts: ModelParts, model: str, folder: Path) -> ModelSource:
        base = parts.base
        if isinstance(base, CatalogEntry) and base.must_download:
            download_model(self.settings, base.path, str(base.revision))
        files = LocalRunFiles(folder, self.worker.storage)
        return fetch_weights(parts, model, str(folder), files.download_folder)

    def _receive(self, seconds: float) -> None:
        """Handle the processes' messages; wait up to `seconds` for the first one."""
        try:
            self._handle(self.processes.inbox.get(timeout=seconds))
            while True:
                self._handle(self.processes.inbox.get_nowait())
        except queue.Empty:
            return

    def _handle(self, message: Message) -> None:
        process = message.process
        process.last_message_at = monotonic()
        match message.content:
            case Answer() as answer:
                self._append(answer)
            case Loaded():
                process.is_loaded = True
            case ModelSource() as source if process in self.processes:
                process.start(source, self.settings)
            case Unloadable() as reason:
                logger.error("model not loaded", model=process.model, reason=reason.message)
                self._end_all(process, CHANGED if reason.code == CHANGED.code else UNLOADABLE)
            case None:
                self._handle_exit(process)
            case Exception() as error:
                self._end_all(process, _refusal_of(error))

    def _append(self, answer: Answer) -> None:
        request = self.open.get(answer.id)
        if request is None or request.ending is not None:
            return
        request.pieces += answer.pieces
        request.ending = answer.usage or answer.refusal

    def _handle_exit(self, process: ModelProcess) -> None:
        """Fail the requests of a process that has ended without having been closed."""
        if process in self.processes:
            logger.warning("model process died", model=process.model, log=process.last_output())
            self._end_all(process, DIED)

    def _end_all(self, process: ModelProcess, refusal: Refusal) -> None:
        for request in self.open.values():
            if request.process is process:
                request.ending = request.ending or refusal
        self.processes.close(process)

    def _write(self) -> None:
        """Write the pieces received since the last time in one transaction; retried if it fails."""
        changed = [request for request in self.open.values() if request.pieces or request.ending is not None]
        if not changed:
            return
        with self.worker.database.transaction() as session:
            wanted = [_written(session, request) for request in changed]
        for request, is_wanted in zip(changed, wanted, strict=True):
            request.num_chunks += bool(request.pieces)
            request.pieces.clear()
            if request.ending is not None or not is_wanted:
                self._drop(request)

    def _drop(self, request: OpenRequest) -> None:
        """Remove a request that has ended or whose client has left."""
        del self.open[request.row.id]
        if request.process is not None and request.row.id in request.process.open:
            request.process.used_at = monotonic()
            if request.ending is None:
                request.process.cancel(request.row.id)
            request.process.open.discard(request.row.id)
        _log_end(request)

    def _close_hung_and_idle(self) -> None:
        for process in list(self.processes):
            if process.has_hung:
                logger.error("model process hung", model=process.model)
                self._end_all(process, HUNG)
        self.processes.close_idle()


def _written(session: Session, request: OpenRequest) -> bool:
    """Write a request's pieces and its end. False: its client has left."""
    id, fence = request.row.id, request.row.fence
    if request.pieces:
        pieces = [piece.model_dump(mode="json", exclude_defaults=True) for piece in request.pieces]
        if not repository.add_chunk(session, id, fence, request.num_chunks + 1, pieces):
            return False
    match request.ending:
        case Usage() as usage:
            return repository.finish(session, id, fence, usage.model_dump())
        case Refusal() as refusal:
            return repository.fail(session, id, fence, refusal.model_dump())
    return True


def _refusal_of(error: Exception) -> Refusal:
    """The client's error for a model that could not be found or fetched."""
    if isinstance(error, WeightsMissing):
        return Refusal(code="model_not_found", message=f"{error}. {error.hint}".strip(), param="model")
    if isinstance(error, HubError):
        return Refusal(code=UNLOADABLE.code, message=error.text, param="model")
    logger.error("model not fetched", error=str(error), kind=type(error).__name__)
    return UNSTORED if isinstance(error, StorageError) else BROKEN


def _log_end(request: OpenRequest) -> None:
    """Log one line per request, without its text."""
    usage = request.ending.model_dump() if isinstance(request.ending, Usage) else {}
    reason = request.ending.code if isinstance(request.ending, Refusal) else None
    ended = reason or ("answered" if usage else "client left")
    seconds, row = round(monotonic() - request.started_at, 2), request.row
    about = {"generation": row.id, "tenant": row.tenant, "model": row.model, "seconds": seconds}
    logger.info("request answered", **about, ended=ended, **usage)
