"""The command in a terminal with the real service: progress, Ctrl-C and Tab."""

import hashlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from fastapi.testclient import TestClient
from rich.console import Console

from service.cli import options
from service.cli.terminal import output, progress
from service.jobs.model.states import JobState
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.cli.terminal import CTRL_C, Terminal, terminal
from tests.service.cli.test_transfer import send, server
from tests.service.embedded import GRPO, environment
from tests.service.job_samples import add_job, make_model, num_jobs, request, upload
from tests.support.proxy import Proxy

pytestmark = on_sqlite

BIG_BYTES = 16 * 2**20
"""More than sockets and proxies buffer."""


@pytest.fixture
def proxy(server_url: str) -> Iterator[Proxy]:
    with Proxy(int(server_url.rpartition(":")[2])) as proxy:
        yield proxy


class Shell:
    """Starts commands against one service."""

    def __init__(self, home: Path, url: str, api_key: str) -> None:
        self.environment = environment(home, GRPO_URL=url, GRPO_API_KEY=api_key)

    def grpo(self, *arguments: str | Path) -> AbstractContextManager[Terminal]:
        return terminal([*GRPO, *(str(argument) for argument in arguments)], self.environment)

    def words(self, line: str) -> tuple[list[str], str]:
        """Bash's completions of this line's last word, and standard error."""
        grpo = Path(sys.executable).parent / "grpo"
        completing = {
            "_GRPO_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(line.count(" ")),
        }
        done = subprocess.run(
            [grpo], env={**self.environment, **completing}, capture_output=True, text=True, check=True
        )
        return done.stdout.split(), done.stderr


@pytest.fixture
def shell(settings: Settings, proxy: Proxy, api_key: str) -> Shell:
    return Shell(settings.home, f"http://127.0.0.1:{proxy.port}", api_key)


def test_an_upload_shows_its_bytes_and_ctrl_c_reports_that_nothing_was_created(
    shell: Shell, proxy: Proxy, client: TestClient, tmp_path: Path
) -> None:
    big = tmp_path / "big.jsonl"
    big.write_bytes(b'{"prompt": "x"}\n' * (BIG_BYTES // 16))
    proxy.stall()
    with shell.grpo("files", "upload", big) as running:
        running.wait_for("/16.8 MB")
        assert "upload big.jsonl" in running.text
        running.press(CTRL_C)
        assert running.end() == 130
        assert "Upload interrupted: nothing was stored or created." in running.text
    proxy.cut()
    assert client.get("/v1/files").json()["data"] == []


def test_ctrl_c_while_a_job_is_checked_explains_how_to_find_it(
    shell: Shell, proxy: Proxy, client: TestClient, settings: Settings, tmp_path: Path, database: Database
) -> None:
    make_model(settings.home)
    job_file = tmp_path / "job.json"
    job_file.write_text(json.dumps(request(upload(client))))
    proxy.stall()
    with shell.grpo("submit", job_file) as running:
        running.wait_for("checking the job and its rows…")
        running.press(CTRL_C)
        assert running.end() == 130
        assert "`grpo list` shows it, `grpo cancel ID` ends it." in running.text
    proxy.cut()
    assert num_jobs(database) == 0


def test_ctrl_c_while_watching_reports_that_the_job_continues(shell: Shell, database: Database) -> None:
    job_id = add_job(database, JobState.RUNNING, phase="loading")
    with shell.grpo("watch", job_id) as running:
        running.wait_for("loading")
        running.press(CTRL_C)
        assert running.end() == 0
        assert f"the job continues. `grpo cancel {job_id}` ends it." in running.text


def test_a_download_after_ctrl_c_is_resumed_by_the_next_command(tmp_path: Path, settings: Settings) -> None:
    body = bytes(range(256)) * 4096
    sha256 = hashlib.sha256(body).hexdigest()
    ranges: list[str | None] = []
    ended = Event()

    def half_at_first(handler: BaseHTTPRequestHandler) -> None:
        ranges.append(handler.headers["Range"])
        headers = {"ETag": f'"{sha256}"', "x_checksum_sha256": sha256}
        if len(ranges) == 1:
            send(handler, 200, body[:500_000], length=len(body), **headers)
            ended.wait(60)
            return
        headers["Content_Range"] = f"bytes 500000-{len(body) - 1}/{len(body)}"
        send(handler, 206, body[500_000:], length=len(body) - 500_000, **headers)

    with server(half_at_first) as url:
        shell = Shell(settings.home, url, "key")
        with shell.grpo("download", "ftjob-1", "--to", tmp_path / "out") as running:
            running.wait_for("0.5/1.0 MB")
            running.press(CTRL_C)
            assert running.end() == 130
            assert "the same command continues after 500.0 kB" in running.text
        ended.set()
        with shell.grpo("download", "ftjob-1", "--to", tmp_path / "out") as running:
            assert running.end() == 0
    assert ranges == [None, "bytes=500000-"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["ftjob-1.tar.gz"]
    assert (tmp_path / "out" / "ftjob-1.tar.gz").read_bytes() == body


def test_tab_completes_a_job_id(shell: Shell, database: Database) -> None:
    job_id = add_job(database, JobState.RUNNING)
    assert shell.words("grpo diagnose ftjob-") == ([job_id], "")


def completion_context(url: str, key: str | None) -> SimpleNamespace:
    """The context of a completion: the options before the command."""
    root = SimpleNamespace(params={"url": url, "api_key": key})
    return SimpleNamespace(find_root=lambda: root)


def test_files_and_models_are_completed_with_a_description(
    server_url: str, api_key: str, client: TestClient, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "COMPLETION_SECONDS", 60.0)  # a busy machine may take longer than a person
    make_model(settings.home)
    file_id, context = upload(client), completion_context(server_url, api_key)
    assert options.complete_files(context, file_id[:8]) == [(file_id, "train.jsonl")]  # type: ignore[arg-type]
    assert [name for name, _ in options.complete_models(context, "ti")] == ["tiny"]  # type: ignore[arg-type]
    assert options.complete_models(context, "x") == []  # type: ignore[arg-type]


def test_a_description_cannot_run_as_a_command_of_the_shell(
    server_url: str, api_key: str, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """zsh evaluates it twice, and typer's escape of `$` does not hold after a backslash."""
    monkeypatch.setattr(options, "COMPLETION_SECONDS", 60.0)
    file_id, context = upload(client), completion_context(server_url, api_key)
    client.patch(f"/v1/files/{file_id}", json={"filename": "\\$(id) `id` é.jsonl"}).raise_for_status()
    assert options.complete_files(context, file_id) == [(file_id, "___id_ _id_ é.jsonl")]  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["", "http://127.0.0.1:9", "nonsense", "http://["])
def test_tab_is_silent_without_a_service_or_a_valid_key(
    server_url: str, url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert options.complete_jobs(completion_context(url or server_url, "wrong"), "") == []  # type: ignore[arg-type]
    assert "Error" not in capfd.readouterr().err


def test_without_a_terminal_progress_is_an_occasional_plain_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with progress.transfer("upload a.jsonl") as advance:
        advance(10, 4000)
        monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
        advance(2000, 4000)
    assert capsys.readouterr().err.startswith("upload a.jsonl: 2.0 kB of 4.0 kB, ")


def test_without_a_terminal_a_long_wait_is_one_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    shown = Event()
    monkeypatch.setattr(progress, "note", lambda text: (print(text), shown.set()))
    with progress.waiting("checking 50,000 rows…"):
        assert shown.wait(60)
    assert capfd.readouterr().out == "checking 50,000 rows…\n"


def test_a_terminal_of_80_columns_shows_whole_ids_beside_long_values(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(output, "console", Console(file=shown, width=80))
    job_id = "ftjob-Wx3H3xxY4QFeo9Ic3VRSyQrw"
    values = ("long name " * 12, job_id, "succeeded (!)", "+0.058, not significant", "ft:tiny:" + "x" * 200)
    output.print_table([], ("name", "id", "status", "held-out", "model"), [values])
    assert job_id in shown.getvalue().split()
    assert "…" not in shown.getvalue()
