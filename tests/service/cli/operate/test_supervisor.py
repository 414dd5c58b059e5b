"""A child of `grpo up` that ends, and cannot be started again at once."""

import sys
from pathlib import Path

import pytest

from service.cli.operate import supervisor
from service.cli.operate.supervisor import Child
from tests.support.servers import wait_until


def test_a_child_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while its interpreter is being replaced: the other children must go on."""
    monkeypatch.setattr(supervisor, "FIRST_BACKOFF_SECONDS", 0.01)
    program = tmp_path / "python"
    program.symlink_to(sys.executable)
    child = Child("worker", [str(program), "-c", "import time; time.sleep(60)"], orphan_signal=None)
    messages: list[str] = []

    def is_tried() -> bool:
        child.restart_if_ended(messages.append)
        return any("cannot be started" in each for each in messages)

    child.start()
    program.unlink()
    child.kill()
    wait_until(is_tried, 120)
    program.symlink_to(sys.executable)
    wait_until(lambda: child.restart_if_ended(messages.append) or child.alive, 120)
    child.kill()
