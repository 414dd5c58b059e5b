"""The common base of the actors of ranks and samplers: one engine process on the actor's host.

An actor dies with its driver, and the engine with the actor. If the driver makes no call for
`SILENCE_SECONDS` (its host is unreachable), the actor ends itself, because the job may already run elsewhere.
"""

import os
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from grpo_engine.process.gpus import VISIBLE_DEVICES, count_visible_gpus
from grpo_engine.process.parent_death import end_with_parent
from service.platform.storage import open_storage
from service.settings import Settings
from worker.cluster.plan import SILENCE_SECONDS, Plan
from worker.launchers.base import engine_arguments
from worker.launchers.local import LOG_FILE, EngineProcess
from worker.launchers.run_directory import clean_up, run_directory
from worker.launchers.run_files import LocalRunFiles
from worker.launchers.warm_pool import EngineCommand

LOOK_SECONDS = 0.2
SET_BY_RAY = ("OMP_NUM_THREADS",)
"""Ray's variables that limit an actor's threads; the engine sets its own number."""


class EngineActor:
    """An actor with one engine. Ray calls it in several threads."""

    def __init__(self, plan: Plan) -> None:
        end_with_parent(os.getppid())  # Ray itself checks its node only every two seconds
        self._plan = plan
        self._settings = Settings(**plan.settings)
        self._engine: EngineProcess | None = None
        self._folder = self._settings.runs_dir
        self._entered = ExitStack()
        self._last_call_at = time.monotonic()
        # the kernel kills the engine when the thread that started it ends
        self._starter = ThreadPoolExecutor(1)
        threading.Thread(target=self._end_when_silent, daemon=True).start()

    def files(self, method: str, *arguments: Any) -> Any:
        """Call a method of `LocalRunFiles` for the run directory."""
        files = LocalRunFiles(self._folder, open_storage(self._settings.storage_location))
        return getattr(files, method)(*arguments)

    def kill(self) -> None:
        """Send SIGKILL to the engine and all its processes; returns when they have ended."""
        if self._engine:
            self._engine.close()

    def leave(self) -> None:
        """Kill the engine, and delete the run directory."""
        self.kill()
        self._entered.close()

    def _use_folder(self, name: str, *, is_new: bool) -> None:
        """Use this run directory on the host; `is_new`: create it."""
        runs = self._settings.runs_dir.resolve()
        self._folder = runs / self._plan.job_id / f"{self._plan.fence}.{name}"
        if is_new:
            clean_up(runs)
            self._entered.enter_context(run_directory(self._folder))

    def _start_engine(
        self,
        gpu: int,
        variables: Mapping[str, str],
        arguments: Sequence[str] = (),
        descriptors: Collection[int] = (),
        log_name: str = LOG_FILE,
    ) -> None:
        """Start the engine. `gpu`: index of its GPU among the plan's."""
        wanted = EngineCommand.of(self._settings)
        unwanted = {*SET_BY_RAY, *([] if self._has_real_gpu else [VISIBLE_DEVICES])}
        environment = {name: value for name, value in wanted.environment.items() if name not in unwanted}
        environment |= variables
        if self._plan.gpus:
            environment[VISIBLE_DEVICES] = self._plan.gpus[gpu]
        command = [*wanted.command, *engine_arguments(self._folder), *arguments]
        starting = self._starter.submit(
            EngineProcess, command, self._folder, environment, descriptors, log_name
        )
        self._engine = starting.result()

    @property
    def _has_real_gpu(self) -> bool:
        """Whether the GPU exists; for a GPU that is only declared, the process runs on the CPU."""
        return bool(self._plan.gpus) or (self._plan.resource == "GPU" and count_visible_gpus({}) > 0)

    def _end_when_silent(self) -> None:
        while time.monotonic() - self._last_call_at < SILENCE_SECONDS:
            time.sleep(LOOK_SECONDS)
        os._exit(1)
