"""The command with standard streams that are closed, or whose encoding lacks characters."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from service.platform.db import Database
from service.platform.tables.core import ApiKey
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.ports import free_port
from tests.service.embedded import GRPO, ROOT, START_SECONDS, environment, processes_of
from tests.support.servers import is_ok, wait_until

pytestmark = on_sqlite

NAME = "Zoë – 😀"
LATIN_1 = {"PYTHONIOENCODING": "latin-1"}
OPENED = """
import json, os, sys
from pathlib import Path
from service.cli.terminal.streams import prepare_streams

prepare_streams()
found = []
for stream in (sys.stdin, sys.stdout, sys.stderr):
    number = stream.fileno()
    is_null = os.readlink(f"/proc/self/fd/{number}") == os.devnull
    found.append((number, is_null, os.get_inheritable(number)))
Path(sys.argv[1]).write_text(json.dumps(found))
"""
"""Reports of each standard stream: its number, whether it is the null device, whether children inherit it."""


def shell(home: Path, line: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """A line of a shell in which `$@` is the command."""
    command = ["sh", "-c", line, "sh", *GRPO]
    return subprocess.run(
        command, env=environment(home, **variables), capture_output=True, timeout=120, check=False
    )


def test_text_that_the_terminal_cannot_show_is_escaped(settings: Settings, database: Database) -> None:
    with database.transaction() as session:
        session.add(ApiKey(public_id="k" * 16, tenant="acme", name=NAME, secret_sha256="0" * 64))
    done = shell(settings.home, '"$@" keys list', **LATIN_1)
    assert (done.returncode, done.stderr) == (0, b"")
    (line,) = [line for line in done.stdout.decode("latin-1").splitlines() if line.startswith("k" * 16)]
    assert r"Zoë \u2013 \ud83d\ude00" in line
    listed = shell(settings.home, '"$@" keys list --json', **LATIN_1).stdout
    assert [one["name"] for one in json.loads(listed.decode("latin-1"))] == [NAME]


@pytest.mark.parametrize(("closed", "number"), [("<&-", 0), (">&-", 1), ("2>&-", 2)])
def test_a_closed_stream_is_opened_under_its_number_for_children_too(
    tmp_path: Path, closed: str, number: int
) -> None:
    report = tmp_path / "report.json"
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", OPENED, str(report)]
    subprocess.run(command, cwd=ROOT, input=b"", capture_output=True, timeout=120, check=True)
    expected = [[each, each == number, True] for each in range(3)]
    assert json.loads(report.read_text()) == expected


def test_the_service_starts_and_stops_with_closed_streams(tmp_path: Path) -> None:
    port = free_port()
    process = subprocess.Popen(
        ["sh", "-c", f'exec "$@" up --port {port} <&- >&- 2>&-', "sh", *GRPO],
        env=environment(tmp_path / "home"),
    )
    wait_until(lambda: process.poll() is None and is_ok(f"http://127.0.0.1:{port}/readyz"), START_SECONDS)
    process.terminate()
    assert process.wait(START_SECONDS) == 0
    assert processes_of(tmp_path / "home") == []
