import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_engine.process import parent_death

PARENT = """
import signal, subprocess, sys, time
from grpo_engine.process.parent_death import bound_command, dies_with_this_process
idle = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]
if sys.argv[1] == "command":
    child = subprocess.Popen(bound_command(idle), stdout=subprocess.PIPE)
else:
    child = subprocess.Popen(idle, stdout=subprocess.PIPE, preexec_fn=dies_with_this_process(signal.SIGTERM))
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["command", "function"])
def parent(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PARENT, request.param]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG")
def test_a_bound_child_ends_when_its_parent_is_killed(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    child = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    ended, _, _ = select.select([child], [], [], 30)
    os.close(child)
    assert ended


def test_a_child_whose_parent_is_gone_does_not_start_its_command(tmp_path: Path) -> None:
    mark = tmp_path / "started"
    command = [sys.executable, "-I", "-S", parent_death.__file__, "1", "touch", str(mark)]
    assert subprocess.run(command).returncode == 1
    assert not mark.exists()
