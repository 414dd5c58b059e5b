"""Warm and working engines, from the process table."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def waiting_engines(worker: int) -> list[int]:
    """Process ids of the warm engines of this worker process and its forks."""
    return [pid for pid in _engines_ahead(Path("/")) if worker in _ancestors(pid)]


def talking_engines(worker: int) -> list[int]:
    """Process ids of the fake serving engines of this worker process."""
    return running(worker, "tests.support.fake_serving")


def running(parent: int, text: str) -> list[int]:
    """`descendants` that have not ended."""
    return [pid for pid in descendants(parent, text.encode()) if is_alive(pid)]


def descendants(pid: int, text: bytes) -> list[int]:
    """Processes below this one with the text in a word of their command line."""
    processes = Path("/proc").glob("[0-9]*")
    found = [int(path.name) for path in processes if any(text in word for word in _command(path))]
    return [each for each in found if pid in _ancestors(each)]


def _command(process: Path) -> list[bytes]:
    try:
        return (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def working_engines(folder: Path) -> list[int]:
    """Process ids of engines that were warm and now work in this folder."""
    return _engines_ahead(folder.resolve())


def _engines_ahead(folder: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().split(b"\0")
            here = (path / "cwd").readlink()
        except OSError:
            continue
        is_here = here == folder if folder == Path("/") else here.is_relative_to(folder)
        if is_here and b"--warm" in command:
            found.append(int(path.name))
    return found


def _ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        found.append(pid)
    return found
