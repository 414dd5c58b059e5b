"""A real OpenEnv server in a process of its own: `game.py` in the environment `.venv-openenv`."""

import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from grpo_engine.process.parent_death import dies_with_this_process
from tests.ports import free_port
from tests.support.servers import is_ok, wait_until

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / ".venv-openenv/bin/python"
START_SECONDS = 120


class OpenEnvServer:
    """Started by `with`, or by `start`; after `kill` it may be started again on the same port."""

    def __init__(self, game: str = "word", sessions: int = 100) -> None:
        assert PYTHON.exists(), "`make setup-openenv` installs the package openenv"
        self.game, self.sessions = game, sessions
        self.process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}"

    def start(self) -> None:
        if self.process is not None:
            self.process.wait()
        arguments = [str(self.port), self.game, str(self.sessions)]
        self.process = subprocess.Popen(
            [str(PYTHON), str(Path(__file__).with_name("game.py")), *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=dies_with_this_process(signal.SIGKILL),
        )
        wait_until(lambda: is_ok(f"{self.url}/health"), START_SECONDS, "the OpenEnv server")

    @property
    def has_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
