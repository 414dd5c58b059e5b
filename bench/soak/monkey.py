"""Kills one process of a deployment after another and restarts each a moment later.

Boundary: sends SIGKILL only to process ids that it has just looked up by folder or parent.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.e2e.production.deployment import Production
from tests.support.servers import Postgres, Redis

DOWN_SECONDS = (0.0, 4.0)


class Monkey:
    """Kills processes of one deployment. `gap`: minimum and maximum seconds between two kills."""

    def __init__(
        self,
        deployment: Production,
        postgres: Postgres,
        redis: Redis,
        chance: random.Random,
        gap: tuple[float, float],
    ) -> None:
        self._deployment, self._postgres, self._redis = deployment, postgres, redis
        self._chance, self._gap = chance, gap
        self.kills: Counter[str] = Counter()
        self._ways: dict[str, Callable[[], bool]] = {
            "api": lambda: self._kill_service("api"),
            "worker": lambda: self._kill_service("worker"),
            "second worker": lambda: self._kill_service("second worker"),
            "maintenance": lambda: self._kill_service("maintenance"),
            "worker child": lambda: self._kill_one(self._worker_children()),
            "engine": lambda: self._kill_one(self._engines()),
            "redis": self._kill_redis,
            "postgres killed": lambda: self._end_postgres(self._postgres.kill),
            "postgres immediate": lambda: self._end_postgres(self._postgres.abort),
            "postgres restarted": lambda: self._end_postgres(self._postgres.stop),
        }

    def run_for(self, seconds: float) -> None:
        """Kill for `seconds`; when this returns, the last killed process runs again."""
        deadline = time.monotonic() + seconds
        while (now := time.monotonic()) < deadline:
            time.sleep(min(self._chance.uniform(*self._gap), deadline - now))
            way = self._chance.choice(sorted(self._ways))
            if self._ways[way]():
                self.kills[way] += 1

    def _down(self) -> None:
        time.sleep(self._chance.uniform(*DOWN_SECONDS))

    def _kill_service(self, name: str) -> bool:
        process = self._deployment.running[name]
        process.kill()
        process.wait()
        self._down()
        self._deployment.start("worker" if "worker" in name else name, name)
        return True

    def _kill_redis(self) -> bool:
        self._redis.kill()
        self._down()
        self._redis.start()
        return True

    def _end_postgres(self, end: Callable[[], None]) -> bool:
        end()
        self._down()
        self._postgres.start()
        return True

    def _kill_one(self, pids: list[int]) -> bool:
        """Kill one of these processes at random; False if there is none."""
        if not pids:
            return False
        with suppress(ProcessLookupError):
            os.kill(self._chance.choice(pids), signal.SIGKILL)
        return True

    def _worker_children(self) -> list[int]:
        """Children of both Celery workers: pool processes and helpers."""
        parents = {self._deployment.running[name].pid for name in ("worker", "second worker")}
        return [pid for pid, parent in _processes() if parent in parents]

    def _engines(self) -> list[int]:
        runs = (self._deployment.home / "runs").resolve()
        return [pid for pid, _ in _processes() if _folder_of(pid).is_relative_to(runs)]


def _processes() -> list[tuple[int, int]]:
    """Every process and its parent."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
            found.append((int(path.name), parent))
    return found


def _folder_of(pid: int) -> Path:
    try:
        return Path(f"/proc/{pid}/cwd").readlink()
    except OSError:
        return Path("/nowhere")
