"""Serving engines: one process per loaded model, and a few at a time. The least recently used one is evicted.

Boundary: processes, their weights and their messages; `chat_dispatcher.py` assigns requests to them. Nothing
here blocks, because threads fetch weights and read and write messages.
"""

import itertools
import os
import queue
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import structlog
from pydantic import BaseModel

from grpo_engine.config.job import ModelSource
from grpo_engine.serve.protocol import Answer, Cancel, Generate, Loaded, Output, ServedModel, Unloadable
from service.jobs.model.methods import parsed_method, quantization_of
from service.jobs.results.weights import ModelParts
from service.platform.catalog import CatalogEntry
from service.settings import Settings
from worker.launchers.local import EngineProcess

logger = structlog.get_logger()

SILENT_SECONDS = 300.0
"""A busy process that sends no message for this long has hung."""

Report = Answer | Loaded | Unloadable | None
"""A message from the process; None: the process has ended."""
Fetch = Callable[[Path], ModelSource]


@dataclass
class Message:
    """A message from a model process, its fetched weights, or why they could not be fetched."""

    process: "ModelProcess"
    content: Report | ModelSource | Exception


Inbox = queue.SimpleQueue[Message]


class ModelProcess:
    """The process of one model, which is being fetched, loading or loaded."""

    def __init__(self, model: str, parts: ModelParts, folder: Path, inbox: Inbox) -> None:
        self.model = model
        self.parts = parts
        self.open: set[str] = set()
        """Ids of the open requests."""
        self.used_at = self.last_message_at = monotonic()
        self.is_loaded = False
        self._folder = folder
        self._inbox = inbox
        self._engine: EngineProcess | None = None
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """Messages to the process, which reads the first one after it has loaded the model."""

    @property
    def has_hung(self) -> bool:
        if self._engine is None:
            return False  # a download may take a long time
        is_busy = bool(self.open) or not self.is_loaded
        return is_busy and monotonic() - self.last_message_at > SILENT_SECONDS

    def fetch(self, fetch: Fetch) -> None:
        """Fetch the weights in a thread; the result goes to the inbox."""

        def run() -> None:
            try:
                found: ModelSource | Exception = fetch(self._folder)
            except Exception as error:  # noqa: BLE001 - the reader of the inbox handles it
                found = error
            self._inbox.put(Message(self, found))

        self._folder.mkdir(parents=True)
        threading.Thread(target=run, name="weights", daemon=True).start()

    def start(self, source: ModelSource, settings: Settings) -> None:
        """Start the process. It dies with the calling thread."""
        reading, writing = os.pipe()
        command = [str(settings.engine_python), "-P", "-m", settings.chat_module]
        try:
            self._engine = EngineProcess(
                [*command, "--answers-to", str(writing)], None, descriptors=[writing]
            )
        finally:
            os.close(writing)
        base = self.parts.base
        limit = base.max_context_tokens if isinstance(base, CatalogEntry) else None
        runtime = settings.runtime.model_copy(update={"ranks": 1})
        adapter = self.parts.adapter
        quantization = adapter and quantization_of(parsed_method(adapter.job.method))
        served = ServedModel(model=source, runtime=runtime, context_tokens=limit, quantization=quantization)
        threads = ((self._read, (reading,)), (_write, (self._engine, _line(served), self._lines)))
        for target, arguments in threads:
            threading.Thread(target=target, args=arguments, name="model-process", daemon=True).start()
        logger.info("model process started", model=self.model, pid=self._engine.pid)

    def generate(self, command: Generate) -> None:
        self.used_at = self.last_message_at = monotonic()
        self.open.add(command.id)
        self._lines.put(_line(command))

    def cancel(self, id: str) -> None:
        self.open.discard(id)
        self._lines.put(_line(Cancel(id=id)))

    def last_output(self) -> tuple[str, ...]:
        """Last lines of its log until the model was loaded; later lines might quote a request."""
        return self._engine.log_tail(8) if self._engine and not self.is_loaded else ()

    def close(self) -> int | None:
        """End the process and remove its folder. Returns the exit code."""
        code = None
        if self._engine is not None:
            self._engine.close()
            code = self._engine.poll()
        self._lines.put(None)
        shutil.rmtree(self._folder, ignore_errors=True)
        return code

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as lines:
            for line in lines:
                self._inbox.put(Message(self, Output.validate_json(line)))
        self._inbox.put(Message(self, None))


def _line(record: BaseModel) -> bytes:
    return record.model_dump_json().encode() + b"\n"


def _write(engine: EngineProcess, first: bytes, lines: queue.SimpleQueue[bytes | None]) -> None:
    """Write lines to the engine's standard input; the reader notices when the engine ends."""
    with suppress(BrokenPipeError, ValueError):  # ValueError: the pipe was closed meanwhile
        for line in itertools.chain([first], iter(lines.get, None)):
            engine.door.write(line)
            engine.door.flush()


class ModelProcesses:
    """The loaded models of this worker."""

    def __init__(self, settings: Settings) -> None:
        self.inbox: Inbox = queue.SimpleQueue()
        self._settings = settings
        self._folder = settings.home / "chat"
        self._all: list[ModelProcess] = []
        self._number = 0
        shutil.rmtree(self._folder, ignore_errors=True)  # left by a killed process

    def __iter__(self) -> Iterator[ModelProcess]:
        return iter(list(self._all))

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def has_room(self) -> bool:
        """Whether another model can be loaded, if necessary by evicting an idle one."""
        return len(self._all) < self._settings.chat_models or any(not process.open for process in self._all)

    @property
    def models(self) -> list[str]:
        return [process.model for process in self._all]

    def of(self, model: str, parts: ModelParts, fetch: Fetch) -> ModelProcess | None:
        """The model's process, existing or new. None: all slots are in use."""
        for process in self._all:
            if process.parts == parts:
                return process
        if not self.has_room:
            return None
        if len(self._all) >= self._settings.chat_models:
            idle = [process for process in self._all if not process.open]
            self.close(min(idle, key=lambda process: process.used_at))
        self._number += 1
        process = ModelProcess(model, parts, self._folder / str(self._number), self.inbox)
        self._all.append(process)
        process.fetch(fetch)
        return process

    def close(self, process: ModelProcess) -> None:
        if process in self._all:
            self._all.remove(process)
        code = process.close()
        logger.info("model process ended", model=process.model, exit_code=code)

    def close_idle(self) -> None:
        for process in list(self._all):
            if not process.open and monotonic() - process.used_at > self._settings.chat_idle_seconds:
                self.close(process)

    def close_all(self) -> None:
        for process in list(self._all):
            self.close(process)
