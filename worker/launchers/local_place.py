"""An engine with one rank on this machine: a child process, if possible the warm one."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.platform.storage import Storage
from worker.launchers.local import EngineProcess
from worker.launchers.run_files import LocalRunFiles
from worker.launchers.warm_pool import WarmPool


@dataclass(frozen=True)
class LocalPlace:
    """This machine, with the GPUs that `environment` names."""

    folder: Path
    storage: Storage
    engines: WarmPool
    environment: Mapping[str, str]

    @property
    def files(self) -> LocalRunFiles:
        return LocalRunFiles(self.folder, self.storage)

    def waiting_for(self) -> None:
        """None, because the GPUs are already reserved."""

    def start(self) -> EngineProcess:
        return self.engines.start(self.folder, self.environment)
