"""Where engines come from: the one that was started ahead and waits, else a new one.

An engine spends seconds on loading torch and transformers before it can look at a job. So the worker keeps
one that has done this (`python -m grpo_engine --warm`). It holds no job, no folder and no device; it is used
once, and a dead or outdated one costs a cold start and nothing else. Engines are started by one thread, the
worker's main one: the kernel ties their death to it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from grpo_engine.sandbox.unsafe import VARIABLE as WITHOUT_SANDBOX
from service.settings import Settings
from worker.launchers.local import EngineProcess, engine_environment

logger = structlog.get_logger()


@dataclass(frozen=True)
class Recipe:
    """What a process was started from; a waiting one of another recipe is not used."""

    command: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def of(cls, settings: Settings) -> Recipe:
        # -P: what lies in the run directory, a user's data, is not importable
        command = (str(settings.engine_python), "-P", "-m", settings.engine_module)
        unsafe = {WITHOUT_SANDBOX: "1"} if settings.allows_unsafe else {}
        return cls(command, engine_environment(os.environ) | unsafe)


class Engines:
    """Starts engines; with `keep_warm` one is started ahead when `prepare` is called."""

    def __init__(self, settings: Settings, *, keep_warm: bool) -> None:
        self._settings = settings
        self._keep_warm = keep_warm
        self._waiting: tuple[Recipe, EngineProcess] | None = None
        self._is_prepared = False

    @property
    def waiting_pid(self) -> int | None:
        """Process id of the engine that waits; None where there is none."""
        return self._waiting[1].pid if self._waiting else None

    def start(self, arguments: Sequence[str], run_dir: Path) -> EngineProcess:
        """An engine with this job: the waiting one where it lives and is what a new one would be."""
        recipe = Recipe.of(self._settings)
        engine = self._handed_over(recipe, arguments, run_dir)
        is_warm = engine is not None
        engine = engine or EngineProcess([*recipe.command, *arguments], run_dir)
        logger.info("engine started", pid=engine.pid, warm=is_warm, run_dir=str(run_dir))
        return engine

    def prepare(self) -> None:
        """Start the next job's engine ahead; does nothing where that was done since the last job.

        One that died while it waited is not replaced before the next job: its death may be its machine's
        shortage of memory.
        """
        if self._is_prepared or not self._keep_warm:
            self._tell_death()
            return
        self._is_prepared = True
        recipe = Recipe.of(self._settings)
        try:
            self._waiting = recipe, EngineProcess([*recipe.command, "--warm"], None)
        except OSError as error:  # the job itself will meet it and say so
            logger.warning("no engine started ahead", error=str(error))

    def close(self) -> None:
        """Nothing waits any more when this returns."""
        if self._waiting is not None:
            self._waiting[1].close()
        self._waiting = None

    def _handed_over(self, recipe: Recipe, arguments: Sequence[str], run_dir: Path) -> EngineProcess | None:
        self._tell_death()
        waiting, self._waiting, self._is_prepared = self._waiting, None, False
        if waiting is None:
            return None
        made_of, engine = waiting
        if made_of == recipe and engine.hand_over(arguments, run_dir):
            return engine
        engine.close()
        return None

    def _tell_death(self) -> None:
        if self._waiting is None:
            return
        engine = self._waiting[1]
        if (code := engine.poll()) is not None:
            logger.warning("the waiting engine died", exit_code=code, log=engine.log_tail(5))
            self.close()
