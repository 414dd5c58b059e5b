"""The API as a process, started by the command of `grpo serve`.

Boundary: a process, its port and its log.
"""

import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from grpo_engine.process.parent_death import dies_with_this_process
from service.cli.operate.settings import api_command
from tests.support.forking import client as forking
from tests.support.servers import is_ok, wait_until

START_SECONDS = 120
Process = subprocess.Popen[bytes] | forking.Forked


def start_api(
    port: int, environment: Mapping[str, str], log: Path, *, within: Sequence[str] = (), path: str = "/readyz"
) -> Process:
    """Start the API and wait until `path` returns 200. The kernel kills it when this process ends.

    Without `within`, a program that runs it, it is forked from a process that has imported its modules.
    Output is appended to `log`.
    """
    command = api_command("127.0.0.1", port)
    with log.open("ab") as output:
        process: Process
        if within:
            process = subprocess.Popen(
                [*within, *command],
                env=environment,
                stdout=output,
                stderr=output,
                preexec_fn=dies_with_this_process(signal.SIGKILL),
            )
        else:
            process = forking.start(command[2:], environment, output.fileno())

    def answers() -> bool:
        assert process.poll() is None, log.read_text(errors="replace")
        return is_ok(f"http://127.0.0.1:{port}{path}")

    wait_until(answers, START_SECONDS, f"the API is ready: {log}")
    return process


@contextmanager
def running_api(
    port: int, environment: Mapping[str, str], log: Path, *, within: Sequence[str] = (), path: str = "/readyz"
) -> Iterator[Process]:
    """`start_api`; the process is terminated at the end of the block."""
    process = start_api(port, environment, log, within=within, path=path)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(START_SECONDS)
