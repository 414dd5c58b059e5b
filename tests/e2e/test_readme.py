"""The README's shell blocks, as they stand, run by a shell in a clean home."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def shell_blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
def test_the_quick_start_ends_with_an_adapter(tmp_path: Path) -> None:
    two_commands, start, job = shell_blocks()
    assert [line.split("#")[0].split() for line in two_commands.splitlines()] == [
        ["make", "demo"],
        ["make", "test"],
    ]
    port = str(free_port())
    script = (start.replace("make setup\n", "") + job).replace("grpo up", f"grpo up --port {port}")
    script = script.replace("8000", port).replace("adapter.tar.gz", str(tmp_path / "adapter.tar.gz"))
    script += "\nkill $!; wait\n"
    environment = {**os.environ, "HOME": str(tmp_path), "GRPO_URL": f"http://127.0.0.1:{port}"}
    environment.pop("GRPO_HOME", None)
    run = subprocess.Popen(
        ["bash", "-c", script],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = run.communicate(timeout=180)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGTERM)
    assert b"succeeded" in output, output.decode()
    with tarfile.open(tmp_path / "adapter.tar.gz") as archive:
        assert {"adapter_config.json", "adapter_model.safetensors"} <= set(archive.getnames())
