"""Claims models that requests wait for, keeps a few loaded and registers their servers.

The least recently used idle model is unloaded for another one. On a machine with GPUs, jobs take precedence:
when a job starts, loaded models are ended. Boundary: rows and decisions; processes are in `model_process.py`.
"""

import itertools
import shutil
import socket
import threading
from functools import partial
from pathlib import Path
from time import monotonic

import structlog

from grpo_engine.chat.protocol import Refusal
from grpo_engine.config.job import ModelSource
from service.hub.child_process import download_model
from service.jobs.results.weights import ModelParts, WeightsMissing, model_parts
from service.jobs.store.lineage import lineage_of
from service.platform.catalog import CatalogEntry, CatalogError
from service.serving import repository
from service.serving.repository import ClaimedModel
from worker.attempt.fetch_weights import fetch_weights
from worker.attempt.worker import Worker
from worker.launchers.run_files import LocalRunFiles
from worker.serving.model_process import BROKEN, KILL_SECONDS, ModelProcess

logger = structlog.get_logger()

LEASE_SECONDS = 20.0
BEAT_SECONDS = 3.0
"""Time between two lease renewals and announcements to the API."""
PACE_SECONDS = 0.1
"""Longest pause between two rounds while a model is loaded."""
STOPPING = Refusal(code="worker_stopping", message="The worker is shutting down; try again.")
TRAINING = Refusal(code="workers_training", message="A training job is using the GPUs; try again later.")
HUNG = Refusal(
    code="sampler_hung", message="The model's process stopped responding and was ended; try again."
)


class ModelKeeper:
    """The models of this worker."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.settings = worker.settings
        self.processes: list[ModelProcess] = []
        self._changed = threading.Event()
        self._folders = (self.settings.home / "chat" / str(number) for number in itertools.count())
        self._beaten_at = -BEAT_SECONDS
        self._is_training = False
        shutil.rmtree(self.settings.home / "chat", ignore_errors=True)  # left by a killed process

    def round(self) -> None:
        """Claim, register, clean up. Raises SQLAlchemyError if the database is unavailable."""
        is_beat_due = monotonic() - self._beaten_at >= BEAT_SECONDS
        if is_beat_due or self.processes:
            self._yield_gpus()
        if is_beat_due:
            self._beat()
        while not self._is_training and self._has_room() and self._claim_one():
            pass
        for process in list(self.processes):
            self._follow(process)
        pause = self.settings.poll_seconds
        self._changed.wait(min(pause, PACE_SECONDS) if self.processes else pause)
        self._changed.clear()

    def leave(self) -> None:
        """End all models and deregister this worker. Raises SQLAlchemyError."""
        self._end_all(STOPPING)
        with self.worker.database.transaction() as session:
            repository.leave(session, self.worker.name)

    def close(self) -> None:
        """End all processes, and wait for them."""
        for process in self.processes:
            process.close()
        for process in self.processes:
            process.join(KILL_SECONDS)

    def _yield_gpus(self) -> None:
        """Free the GPUs for a job that has started; loaded models would take the memory that it expects."""
        if not self.settings.gpus:
            return
        with self.worker.database.reading() as session:
            is_training = repository.trains_on(session, socket.gethostname())
        if is_training and not self._is_training:
            self._end_all(TRAINING)
        if is_training is not self._is_training:
            self._is_training = is_training
            self._beat()

    def _beat(self) -> None:
        with self.worker.database.transaction() as session:
            repository.announce(session, self.worker.name, is_training=self._is_training)
            held = repository.renew(session, self.worker.name, LEASE_SECONDS)
            ours = {(process.claimed.key, process.claimed.fence): process for process in self.processes}
            for key, fence in held - ours.keys():  # claimed when the database was lost
                repository.end(session, key, fence)
        self._beaten_at = monotonic()
        for lost in ours.keys() - held:
            self._drop(ours[lost])

    def _has_room(self) -> bool:
        """Whether another model can be loaded, if necessary by unloading an idle one."""
        is_full = len(self.processes) >= self.settings.chat_models
        return not is_full or any(process.is_idle for process in self.processes)

    def _claim_one(self) -> bool:
        with self.worker.database.reading() as session:
            if not repository.has_wanted(session):
                return False
        with self.worker.database.transaction() as session:
            claimed = repository.claim(session, self.worker.name, LEASE_SECONDS)
        if claimed is None:
            return False
        if len(self.processes) >= self.settings.chat_models:
            idle = [process for process in self.processes if process.is_idle]
            if not idle:  # a request has arrived meanwhile
                self._release(claimed, None)
                return False
            self._end(min(idle, key=lambda process: process.used_at), None)
        try:
            self._load(claimed)
        except WeightsMissing as error:
            message = f"{error}. {error.hint}".strip()
            self._release(claimed, Refusal(code="model_not_found", message=message, param="model"))
        except CatalogError as error:
            logger.error("model not found", error=str(error))
            self._release(claimed, BROKEN)
        return True

    def _load(self, claimed: ClaimedModel) -> None:
        with self.worker.database.reading() as session:
            lineage = lineage_of(session, claimed.tenant, claimed.model)
        parts = model_parts(lineage, self.worker.catalog)
        fetch = partial(self._fetch, parts, claimed.model)
        folder = next(self._folders)
        process = ModelProcess(claimed, parts, fetch, folder, self.settings, self._changed)
        self.processes.append(process)
        process.start()

    def _fetch(self, parts: ModelParts, model: str, folder: Path) -> ModelSource:
        base = parts.base
        if isinstance(base, CatalogEntry) and base.must_download:
            download_model(self.settings, base.path, str(base.revision))
        files = LocalRunFiles(folder, self.worker.storage)
        return fetch_weights(parts, model, str(folder), files.download_folder)

    def _follow(self, process: ModelProcess) -> None:
        """Register a loaded model; end one that has died, has hung or is idle."""
        if process.ending is not None:
            self._end(process, process.ending)
        elif process.has_hung:
            logger.error("model process hung", model=process.claimed.model)
            self._end(process, HUNG)
        elif process.idle_seconds > self.settings.chat_idle_seconds:
            self._end(process, None)
        elif process.address is not None and not process.is_registered:
            key, fence = process.claimed.key, process.claimed.fence
            with self.worker.database.transaction() as session:
                repository.register(session, key, fence, process.address, process.secret)
            process.is_registered = True

    def _end_all(self, refusal: Refusal) -> None:
        for process in list(self.processes):
            self._end(process, refusal)

    def _end(self, process: ModelProcess, refusal: Refusal | None) -> None:
        """Release the model, then end its process, so that requests find the reason."""
        self._release(process.claimed, refusal)
        self._drop(process)

    def _drop(self, process: ModelProcess) -> None:
        process.close()
        self.processes.remove(process)

    def _release(self, claimed: ClaimedModel, refusal: Refusal | None) -> None:
        with self.worker.database.transaction() as session:
            repository.end(session, claimed.key, claimed.fence, refusal.model_dump() if refusal else None)
