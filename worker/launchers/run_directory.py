"""Run directories: `runs/<job>/<fence>`, one per claim, locked while its worker lives.

Only the worker's user can read one, because `config.json` contains headers of graders and tools.

The kernel releases the lock (`flock`) of a killed worker, so that the next one can clean up.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from worker.launchers.local import tail

logger = structlog.get_logger()
LOCK = "owner.lock"
PRIVATE = 0o700
"""Mode of a run directory. Celery, unlike the `grpo` command, keeps the umask of its shell."""
KEPT_LOG_LINES = 500
CREATE_TRIES = 1000
"""Maximum tries; a concurrent clean-up may remove a new directory, but only a few times."""


@contextmanager
def run_directory(path: Path) -> Iterator[Path]:
    """Yield a new locked directory. Then only the end of engine.log is kept, until the next clean-up."""
    lock = _create_locked(path)
    try:
        yield path
    finally:
        with _best_effort(path):
            _shrink(path)
        os.close(lock)


def clean_up(runs_dir: Path, jobs: str = "*") -> None:
    """Remove directories of workers that have ended. `jobs`: pattern of their parents' names."""
    with _best_effort(runs_dir):
        for lock_path in runs_dir.glob(f"{jobs}/*/{LOCK}"):
            if (lock := _try_lock(lock_path)) is not None:
                shutil.rmtree(lock_path.parent, ignore_errors=True)
                os.close(lock)
                with suppress(OSError):  # not empty, because another worker runs there
                    lock_path.parents[1].rmdir()


@contextmanager
def _best_effort(path: Path) -> Iterator[None]:
    """Log an error of the clean-up, so that it fails no job. A full disk or another worker can cause one."""
    try:
        yield
    except OSError as error:
        logger.warning("clean-up failed", path=str(path), error=str(error))


def _create_locked(path: Path) -> int:
    lock_path = path / LOCK
    for _ in range(CREATE_TRIES):
        try:
            path.mkdir(PRIVATE, parents=True, exist_ok=True)
            lock_path.touch()
        except (FileNotFoundError, FileExistsError):
            continue  # a clean-up removed the directory between these calls or inside mkdir
        if (lock := _try_lock(lock_path)) is not None:
            return lock
    raise OSError(f"cannot create and lock {path}")


def _try_lock(path: Path) -> int | None:
    """Open and lock the file, and check that `path` still names it. None if another process holds it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_ino == path.stat().st_ino:
            return descriptor
    os.close(descriptor)
    return None


def _shrink(path: Path) -> None:
    last_lines = tail(path / "engine.log", KEPT_LOG_LINES, max_bytes=65_536)
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        elif entry.name != LOCK:
            entry.unlink(missing_ok=True)
    if last_lines:
        (path / "engine.log").write_text("\n".join(last_lines) + "\n")
