"""The `grpo` command against a service under test."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from service.settings import Settings
from tests.service.embedded import call_grpo, environment


class Grpo:
    """The command, against the service under test."""

    def __init__(self, settings: Settings, url: str, key: str) -> None:
        self._environment = environment(settings.home, GRPO_URL=url, GRPO_API_KEY=key)

    def __call__(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout + done.stderr
        return str(done.stdout)

    @property
    def shell_environment(self) -> dict[str, str]:
        """Of a shell in which `grpo` is this command."""
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**self._environment, "PATH": path}

    def run(self, *arguments: str) -> Any:
        return call_grpo(*arguments, environment=self._environment)

    def error(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        done = self.run(*arguments)
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        error: dict[str, Any] = json.loads(line)["error"]
        return done.returncode, error
