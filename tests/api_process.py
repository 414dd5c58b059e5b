"""The API as a process of its own, started by the command that `grpo serve` becomes.

Boundary: a process, its port and its log. What is in its database and who calls it, the callers know.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from grpo_engine.process.parent_death import dies_with_this_process
from service.cli.operate.settings import api_command
from tests.servers import is_ok, wait_until

START_SECONDS = 60


def start_api(
    port: int, environment: Mapping[str, str], log: Path, *, within: Sequence[str] = (), path: str = "/readyz"
) -> subprocess.Popen[bytes]:
    """Answers with 200 at `path` when this returns; ends with this process, however that ends.

    `within`: a program that stays around it. What the process says is added to `log`.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*within, *api_command("127.0.0.1", port)],
            env=environment,
            stdout=output,
            stderr=output,
            preexec_fn=dies_with_this_process(signal.SIGKILL),
        )

    def answers() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")
        return is_ok(f"http://127.0.0.1:{port}{path}")

    wait_until(answers, START_SECONDS, f"the API answers: {log}")
    return process


@contextmanager
def running_api(
    port: int, environment: Mapping[str, str], log: Path, *, within: Sequence[str] = (), path: str = "/readyz"
) -> Iterator[subprocess.Popen[bytes]]:
    """`start_api`; it is asked to end with the block, and waited for."""
    process = start_api(port, environment, log, within=within, path=path)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(START_SECONDS)
