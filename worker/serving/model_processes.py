"""Serving engines: one process for each loaded model, a few models at a time, the least used one goes first.

Boundary: processes, their weights' folders and their lines; which request gets which is `chat.py`'s. Nothing
here waits: weights are fetched, lines are written and read by threads of their own.
"""

from __future__ import annotations

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
from grpo_engine.serve.protocol import Answer, Ask, Cancel, Loaded, News, ServedModel, Unloadable
from service.jobs.results.weights import Weights
from service.platform.catalog import CatalogEntry
from service.settings import Settings
from worker.launchers.local import EngineProcess

logger = structlog.get_logger()

SILENT_SECONDS = 300.0
"""An engine that loads or answers and says nothing for so long has hung."""

Said = Answer | Loaded | Unloadable | None
"""None: it said its last."""
Fetch = Callable[[Path], ModelSource]


@dataclass
class Heard:
    """Something that a sampler said, or that could not be done for it."""

    sampler: Sampler
    said: Said | ModelSource | Exception


Inbox = queue.SimpleQueue[Heard]


class Sampler:
    """One model on its way to being loaded, then loaded."""

    def __init__(self, model: str, weights: Weights, folder: Path, inbox: Inbox) -> None:
        self.model = model
        self.weights = weights
        self.open: set[str] = set()
        """Requests that it has."""
        self.used_at = self.heard_at = monotonic()
        self.is_loaded = False
        self._folder = folder
        self._inbox = inbox
        self._engine: EngineProcess | None = None
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting: list[Ask] = []
        """Until it is loaded."""

    @property
    def pid(self) -> int | None:
        return self._engine.pid if self._engine else None

    @property
    def has_hung(self) -> bool:
        is_busy = bool(self.open) or not self.is_loaded
        return is_busy and monotonic() - self.heard_at > SILENT_SECONDS

    def fetch(self, fetch: Fetch) -> None:
        """Brings the weights here; the inbox hears of it."""

        def run() -> None:
            try:
                found: ModelSource | Exception = fetch(self._folder)
            except Exception as error:  # noqa: BLE001 - whoever reads the inbox decides
                found = error
            self._inbox.put(Heard(self, found))

        self._folder.mkdir(parents=True)
        threading.Thread(target=run, name="weights", daemon=True).start()

    def start(self, source: ModelSource, settings: Settings) -> None:
        """Loads the model. Call it in the thread that outlives the engine: its end is tied to that one's."""
        reading, writing = os.pipe()
        command = [str(settings.engine_python), "-P", "-m", settings.chat_module]
        try:
            self._engine = EngineProcess([*command, "--answers-to", str(writing)], None, [writing])
        finally:
            os.close(writing)
        base = self.weights.base
        limit = base.max_context_tokens if isinstance(base, CatalogEntry) else None
        runtime = settings.runtime.model_copy(update={"ranks": 1})
        self._send(ServedModel(model=source, runtime=runtime, context_tokens=limit))
        threads = ((self._read, (reading,)), (_write, (self._engine, self._lines)))
        for target, arguments in threads:
            threading.Thread(target=target, args=arguments, name="sampler", daemon=True).start()
        logger.info("sampler started", model=self.model, pid=self.pid)

    def ask(self, ask: Ask) -> None:
        self.used_at = self.heard_at = monotonic()
        self.open.add(ask.id)
        if self.is_loaded:
            self._send(ask)
        else:
            self._waiting.append(ask)

    def cancel(self, id: str) -> None:
        self.open.discard(id)
        self._waiting = [ask for ask in self._waiting if ask.id != id]
        if self.is_loaded:
            self._send(Cancel(id=id))

    def loaded(self) -> None:
        """It said so: what has waited may go to it."""
        self.is_loaded = True
        for ask in self._waiting:
            self._send(ask)
        self._waiting.clear()

    def last_words(self) -> tuple[str, ...]:
        """What it printed, before any request was sent to it; afterwards its lines might quote one."""
        return self._engine.log_tail(8) if self._engine and not self.is_loaded else ()

    def close(self) -> int | None:
        """Nothing of it is left when this returns. Its exit code."""
        code = None
        if self._engine is not None:
            self._engine.close()
            code = self._engine.poll()
        self._lines.put(None)
        shutil.rmtree(self._folder, ignore_errors=True)
        return code

    def _send(self, record: BaseModel) -> None:
        self._lines.put(record.model_dump_json().encode() + b"\n")

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor, "rb") as lines:
            for line in lines:
                self._inbox.put(Heard(self, News.validate_json(line)))
        self._inbox.put(Heard(self, None))


def _write(engine: EngineProcess, lines: queue.SimpleQueue[bytes | None]) -> None:
    """Lines → the engine's standard input; one that has ended is noticed where its answers end."""
    with suppress(BrokenPipeError, ValueError):  # ValueError: it was closed meanwhile
        while (line := lines.get()) is not None:
            engine.door.write(line)
            engine.door.flush()


class Samplers:
    """The models that are loaded here."""

    def __init__(self, settings: Settings) -> None:
        self.inbox: Inbox = queue.SimpleQueue()
        self._settings = settings
        self._folder = settings.home / "chat"
        self._all: list[Sampler] = []
        self._number = 0
        shutil.rmtree(self._folder, ignore_errors=True)  # of one that was killed

    def __iter__(self) -> Iterator[Sampler]:
        return iter(list(self._all))

    def __bool__(self) -> bool:
        return bool(self._all)

    @property
    def has_room(self) -> bool:
        """Whether a further model can be loaded, if need be in the place of an idle one."""
        return len(self._all) < self._settings.chat_models or any(not one.open for one in self._all)

    @property
    def models(self) -> list[str]:
        return [one.model for one in self._all]

    def of(self, model: str, weights: Weights, fetch: Fetch) -> Sampler | None:
        """The model's sampler, perhaps a new one. None: all others are in use."""
        for one in self._all:
            if one.weights == weights:
                return one
        if not self.has_room:
            return None
        if len(self._all) >= self._settings.chat_models:
            self.close(min((one for one in self._all if not one.open), key=lambda one: one.used_at))
        self._number += 1
        made = Sampler(model, weights, self._folder / str(self._number), self.inbox)
        self._all.append(made)
        made.fetch(fetch)
        return made

    def close(self, sampler: Sampler) -> None:
        if sampler in self._all:
            self._all.remove(sampler)
        code = sampler.close()
        logger.info("sampler ended", model=sampler.model, exit_code=code)

    def close_idle(self) -> None:
        for one in list(self._all):
            if not one.open and monotonic() - one.used_at > self._settings.chat_idle_seconds:
                self.close(one)

    def close_all(self) -> None:
        for one in list(self._all):
            self.close(one)
