"""Starts engines, and keeps one warm for the next job.

An engine loads torch and transformers for seconds before it can start a job, so the worker keeps one that has
loaded them (`python -m grpo_engine --warm`). It has no job, directory or device, and is used once. If it is
dead or outdated, the job starts cold. Engines die with the thread of their slot, which starts them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog

from grpo_engine.sandbox.unsafe import VARIABLE as WITHOUT_SANDBOX
from service.settings import Settings
from worker.launchers.base import engine_arguments
from worker.launchers.local import EngineProcess, engine_environment

logger = structlog.get_logger()


@dataclass(frozen=True)
class EngineCommand:
    """Command and environment of an engine. A warm engine with another command is not used."""

    command: tuple[str, ...]
    environment: Mapping[str, str]

    @classmethod
    def of(cls, settings: Settings) -> Self:
        # -P: Python must not import from the run directory, which holds user data
        command = (str(settings.engine_python), "-P", "-m", settings.engine_module)
        unsafe = {WITHOUT_SANDBOX: "1"} if settings.allows_unsafe else {}
        return cls(command, engine_environment(os.environ) | unsafe)


class WarmPool:
    """Starts engines. `warm_up` starts one for the next job, if `keep_warm` and the settings allow it."""

    def __init__(self, settings: Settings, *, keep_warm: bool = False) -> None:
        self._settings = settings
        self._keep_warm = keep_warm and settings.warm_engine and settings.launcher == "local"
        self._warm: tuple[EngineCommand, EngineProcess] | None = None
        self._has_warmed_up = False

    @property
    def warm_pid(self) -> int | None:
        """Process id of the warm engine, if there is one."""
        return self._warm[1].pid if self._warm else None

    def start(self, run_dir: Path, environment: Mapping[str, str]) -> EngineProcess:
        """An engine with this job: the warm one if it is alive and has the command that a new one would have.

        `environment`: the job's own variables, such as its GPUs.
        """
        wanted = EngineCommand.of(self._settings)
        arguments = engine_arguments(run_dir)
        engine = self._hand_over(wanted, arguments, run_dir, environment)
        is_warm = engine is not None
        own = {**wanted.environment, **environment}
        engine = engine or EngineProcess([*wanted.command, *arguments], run_dir, own)
        logger.info("engine started", pid=engine.pid, warm=is_warm, run_dir=str(run_dir))
        return engine

    def warm_up(self) -> None:
        """Start the next job's engine, at most once per job.

        If it dies while it is idle, it is not replaced before the next job, because the machine may be out of
        memory.
        """
        if self._has_warmed_up or not self._keep_warm:
            self._drop_dead()
            return
        self._has_warmed_up = True
        wanted = EngineCommand.of(self._settings)
        try:
            self._warm = wanted, EngineProcess([*wanted.command, "--warm"], None, wanted.environment)
        except OSError as error:  # the next job reports it
            logger.warning("no engine warmed up", error=str(error))

    def close(self) -> None:
        """End the warm engine, if there is one."""
        if self._warm is not None:
            self._warm[1].close()
        self._warm = None

    def _hand_over(
        self, wanted: EngineCommand, arguments: Sequence[str], run_dir: Path, environment: Mapping[str, str]
    ) -> EngineProcess | None:
        self._drop_dead()
        warm, self._warm, self._has_warmed_up = self._warm, None, False
        if warm is None:
            return None
        command, engine = warm
        if command == wanted and engine.hand_over(arguments, run_dir, environment):
            return engine
        engine.close()
        return None

    def _drop_dead(self) -> None:
        if self._warm is None:
            return
        engine = self._warm[1]
        if (code := engine.poll()) is not None:
            logger.warning("warm engine died", exit_code=code, log=engine.log_tail(5))
            self.close()
