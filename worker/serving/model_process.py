"""One loaded model: a thread that fetches its weights, starts its serving engine and reads its reports.

Boundary: no database; `model_keeper.py` stores the attributes.
"""

import os
import secrets
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic

import structlog

from grpo_engine.chat.protocol import Refusal
from grpo_engine.config.job import ModelSource
from grpo_engine.contract.errors import BaseChangedError
from grpo_engine.serve.protocol import DIED, Loaded, Report, ServedModel, Unloadable, Working
from service.hub.models import HubError
from service.jobs.model.methods import parsed_method, quantization_of
from service.jobs.results.weights import ModelParts
from service.platform.catalog import CatalogEntry
from service.platform.storage import StorageError
from service.serving.repository import ClaimedModel
from service.settings import Settings
from worker.launchers.local import EngineProcess

logger = structlog.get_logger()

SILENT_SECONDS = 300.0
"""A busy process that reports nothing for this long has hung."""
KILL_SECONDS = 5.0
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


class ModelProcess(threading.Thread):
    """A model that is being fetched, loading or served. `changed` is set when an attribute changes."""

    def __init__(
        self,
        claimed: ClaimedModel,
        parts: ModelParts,
        fetch: Callable[[Path], ModelSource],
        folder: Path,
        settings: Settings,
        changed: threading.Event,
    ) -> None:
        super().__init__(name="model-process", daemon=True)
        self.claimed = claimed
        self.secret = secrets.token_urlsafe(32)
        self.address: str | None = None
        """URL of its server once the model is loaded."""
        self.is_registered = False
        self.num_open = 0
        self.used_at = self.reported_at = monotonic()
        self.ending: Refusal | None = None
        """Why it has ended, or will not start."""
        self._parts, self._fetch, self._folder = parts, fetch, folder
        self._settings, self._changed = settings, changed
        self._engine: EngineProcess | None = None
        self._is_closed = False
        self._lock = threading.Lock()

    @property
    def is_idle(self) -> bool:
        return self.address is not None and not self.num_open

    @property
    def idle_seconds(self) -> float:
        return monotonic() - self.used_at if self.is_idle else 0.0

    @property
    def has_hung(self) -> bool:
        is_silent = monotonic() - self.reported_at > SILENT_SECONDS
        return self._engine is not None and not self.is_idle and is_silent  # a download may take a long time

    def run(self) -> None:
        """Fetch the weights, start the engine and read its reports. The engine dies with this thread."""
        try:
            self._folder.mkdir(parents=True)
            source = self._fetch(self._folder)
            reading, writing = os.pipe()
            with os.fdopen(reading, "rb") as reports:
                try:
                    self._start(source, writing)
                finally:
                    os.close(writing)
                for line in reports:
                    self._note(Report.validate_json(line))
        except Exception as error:  # noqa: BLE001 - it becomes the client's error
            self.ending = self.ending or self._refusal_of(error)
        finally:
            self._end()

    def close(self) -> None:
        """Kill the engine, which also stops this thread."""
        with self._lock:
            self._is_closed = True
        if self._engine is not None:
            self._engine.kill()
            self._engine.wait(KILL_SECONDS)

    def _start(self, source: ModelSource, writing: int) -> None:
        command = [str(self._settings.engine_python), "-P", "-m", self._settings.chat_module]
        with self._lock:
            if self._is_closed:
                return
            self.reported_at = monotonic()
            self._engine = EngineProcess(
                [*command, "--reports-to", str(writing)], None, descriptors=[writing]
            )
        self._engine.stdin.write(self._served(source).model_dump_json().encode() + b"\n")
        self._engine.stdin.flush()
        logger.info("model process started", model=self.claimed.model, pid=self._engine.pid)

    def _served(self, source: ModelSource) -> ServedModel:
        base, adapter = self._parts.base, self._parts.adapter
        return ServedModel(
            model=source,
            runtime=self._settings.runtime.model_copy(update={"ranks": 1}),
            context_tokens=base.max_context_tokens if isinstance(base, CatalogEntry) else None,
            quantization=adapter and quantization_of(parsed_method(adapter.job.method)),
            host=self._settings.serve_address,
            secret=self.secret,
        )

    def _note(self, report: Loaded | Working | Unloadable) -> None:
        self.used_at = self.reported_at = monotonic()
        match report:
            case Loaded(url=url):
                self.address = url
                self._changed.set()
            case Working(num_open=num_open):
                self.num_open = num_open
            case Unloadable(code=code, message=message):
                logger.error("model not loaded", model=self.claimed.model, reason=message)
                self.ending = CHANGED if code == CHANGED.code else UNLOADABLE

    def _refusal_of(self, error: Exception) -> Refusal:
        """The client's error for a model whose weights were not fetched, or whose process did not start."""
        if isinstance(error, HubError):
            return Refusal(code=UNLOADABLE.code, message=error.text, param="model")
        logger.error("model not started", error=str(error), kind=type(error).__name__)
        return UNSTORED if isinstance(error, StorageError) else BROKEN

    def _end(self) -> None:
        code = None
        if self._engine is not None:
            if not self._is_closed and self.ending is None:
                # lines after it was loaded might quote a request
                log = () if self.address else self._engine.log_tail(8)
                logger.warning("model process died", model=self.claimed.model, log=log)
            self._engine.close()
            code = self._engine.poll()
        shutil.rmtree(self._folder, ignore_errors=True)
        logger.info("model process ended", model=self.claimed.model, exit_code=code)
        self.ending = self.ending or DIED
        self._changed.set()
