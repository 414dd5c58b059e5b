"""The command on a bad connection: broken streams; interrupted, damaged and hostile downloads.

The other side is a small HTTP server that misbehaves on purpose.
"""

import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from service.cli.commands.download import fetch_adapter, unpack
from service.cli.http import sse
from service.cli.http.client import Client
from service.cli.http.partial import Partial
from service.cli.http.sse import follow, parse
from service.cli.terminal.errors import CommandError
from service.platform.errors import ServiceError, Unavailable

BODY = bytes(range(256)) * 4096
SUCCEEDED = b'{"status": "succeeded"}'
SHA256 = hashlib.sha256(BODY).hexdigest()

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def server(answer: Answer) -> Iterator[str]:
    """URL of an HTTP server on a free port that handles every GET with `answer`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, format: str, *arguments: object) -> None:
            """Disables logging."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


def send(handler: BaseHTTPRequestHandler, status: int, body: bytes, *, length: int, **headers: str) -> None:
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(length))
    handler.end_headers()
    handler.wfile.write(body)


def test_an_interrupted_download_is_resumed(tmp_path: Path) -> None:
    ranges: list[str | None] = []

    def cut_twice(handler: BaseHTTPRequestHandler) -> None:
        given = handler.headers["Range"]
        ranges.append(given)
        start = int(given.removeprefix("bytes=").removesuffix("-")) if given else 0
        end = len(BODY) if len(ranges) > 2 else start + 300_000
        headers = {"ETag": f'"{SHA256}"', "x_checksum_sha256": SHA256}
        if start:
            headers["Content_Range"] = f"bytes {start}-{len(BODY) - 1}/{len(BODY)}"
        send(handler, 206 if start else 200, BODY[start:end], length=len(BODY) - start, **headers)

    with server(cut_twice) as url, Client(url, "key") as client:
        path, sha256 = fetch_adapter(client, "ftjob-1", tmp_path)
    assert ranges == [None, "bytes=300000-", "bytes=600000-"]
    assert (path.read_bytes(), sha256) == (BODY, SHA256)


def test_the_best_weights_of_two_jobs_are_two_files(tmp_path: Path) -> None:
    def whole(handler: BaseHTTPRequestHandler) -> None:
        send(handler, 200, BODY, length=len(BODY), x_checksum_sha256=SHA256)

    with server(whole) as url, Client(url, "key") as client:
        for job_id in ("ftjob-1", "ftjob-2"):
            fetch_adapter(client, job_id, tmp_path, checkpoint="best")
        fetch_adapter(client, "ftjob-2", tmp_path, checkpoint="ftckpt-1")
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["ftckpt-1.tar.gz", "ftjob-1-best.tar.gz", "ftjob-2-best.tar.gz"]


def test_a_complete_partial_download_is_downloaded_again_for_its_digest(tmp_path: Path) -> None:
    ranges: list[str | None] = []

    def all_there(handler: BaseHTTPRequestHandler) -> None:
        ranges.append(handler.headers["Range"])
        if handler.headers["Range"]:
            body = b'{"error": {"message": "m", "code": "range_not_satisfiable", "param": null}}'
            send(handler, 416, body, length=len(body))
            return
        send(handler, 200, BODY, length=len(BODY), ETag=f'"{SHA256}"', x_checksum_sha256=SHA256)

    (tmp_path / ".ftjob-1.tar.gz.part").write_bytes(BODY)
    (tmp_path / ".ftjob-1.tar.gz.etag").write_text(f'"{SHA256}"')
    with server(all_there) as url, Client(url, "key") as client:
        path, _ = fetch_adapter(client, "ftjob-1", tmp_path)
    assert ranges == [f"bytes={len(BODY)}-", None]
    assert path.read_bytes() == BODY
    assert list(tmp_path.iterdir()) == [path]


def test_two_commands_cannot_write_to_the_same_download(tmp_path: Path) -> None:
    target = tmp_path / "ftjob-1.tar.gz"
    with Partial.of(target), pytest.raises(CommandError, match="by another command"), Partial.of(target):
        raise AssertionError("unreachable: it is locked")


def test_a_damaged_download_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    def flipped(handler: BaseHTTPRequestHandler) -> None:
        body = b"\xff" + BODY[1:]
        send(handler, 200, body, length=len(body), ETag='"x"', x_checksum_sha256=SHA256)

    with server(flipped) as url, Client(url, "key") as client, pytest.raises(CommandError) as error:
        fetch_adapter(client, "ftjob-1", tmp_path)
    assert error.value.code == "damaged"
    assert list(tmp_path.iterdir()) == []


def test_a_refused_download_leaves_no_folder_that_was_not_there(tmp_path: Path) -> None:
    def refuse(handler: BaseHTTPRequestHandler) -> None:
        send(handler, 404, b"{}", length=2)

    kept = tmp_path / "kept"
    kept.mkdir()
    with server(refuse) as url, Client(url, "key") as client:
        for folder in (kept, kept / "new", tmp_path / "a" / "b"):
            with pytest.raises(CommandError):
                fetch_adapter(client, "ftjob-1", folder)
    assert list(tmp_path.rglob("*")) == [kept]


def test_a_download_that_can_be_resumed_keeps_its_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new"

    def refuse_the_rest(handler: BaseHTTPRequestHandler) -> None:
        if handler.headers["Range"]:
            send(handler, 403, b"{}", length=2)
        else:
            send(handler, 200, BODY[:9], length=len(BODY), ETag=f'"{SHA256}"', x_checksum_sha256=SHA256)

    with server(refuse_the_rest) as url, Client(url, "key") as client, pytest.raises(CommandError):
        fetch_adapter(client, "ftjob-1", folder)
    assert (folder / ".ftjob-1.tar.gz.part").read_bytes() == BODY[:9]


def test_an_archive_with_paths_outside_its_folder_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "evil.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("../escaped")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"hi"))
    with pytest.raises(CommandError, match="cannot be unpacked"):
        unpack(archive)
    assert [path.name for path in tmp_path.iterdir()] == ["evil.tar.gz"]
    assert not (tmp_path.parent / "escaped").exists()


def test_a_broken_stream_is_resumed_after_its_last_event() -> None:
    requested: list[str | None] = []

    def one_event_a_connection(handler: BaseHTTPRequestHandler) -> None:
        if not handler.path.endswith("/stream"):
            status = b'{"status": "succeeded"}' if len(requested) == 3 else b'{"status": "running"}'
            send(handler, 200, status, length=len(status))
            return
        requested.append(handler.headers["Last-Event-ID"])
        body = f'id: {len(requested)}\nevent: metrics\ndata: {{"step": {len(requested)}}}\n\n'.encode()
        # the second connection promises more than it sends
        send(handler, 200, body + b"data: {", length=len(body) + (99 if len(requested) == 2 else 7))

    with server(one_event_a_connection) as url, Client(url, "key") as client:
        events = list(follow(client, "ftjob-1"))
    assert requested == [None, "1", "2"]
    assert [(event.id, event.name, event.data) for event in events] == [
        (str(number), "metrics", {"step": number}) for number in (1, 2, 3)
    ]


def test_a_stream_that_was_quiet_for_long_is_resumed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time without a connection counts, not the time without an event."""
    now, num_streams = 0.0, 0
    monkeypatch.setattr(sse, "time", SimpleNamespace(monotonic=lambda: now, sleep=lambda _seconds: None))

    def quiet_and_cut_off(handler: BaseHTTPRequestHandler) -> None:
        nonlocal now, num_streams
        if not handler.path.endswith("/stream"):
            send(handler, 200, SUCCEEDED, length=len(SUCCEEDED))
            return
        num_streams += 1
        body = b'id: 1\ndata: {"step": 1}\n\n' if num_streams == 2 else b": quiet\n"
        now += 2 * sse.GIVE_UP_SECONDS
        send(handler, 200, body, length=len(body) + (num_streams == 1))

    with server(quiet_and_cut_off) as url, Client(url, "key") as client:
        assert [event.data for event in follow(client, "ftjob-1")] == [{"step": 1}]


@pytest.mark.parametrize("failure", [Unavailable("no database"), ServiceError("internal error")])
def test_a_stream_is_resumed_after_a_failure_of_the_service_s_database(
    failure: ServiceError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "FIRST_DELAY_SECONDS", 0.01)
    num_streams = 0

    def failing_once(handler: BaseHTTPRequestHandler) -> None:
        nonlocal num_streams
        if not handler.path.endswith("/stream"):
            send(handler, 200, SUCCEEDED, length=len(SUCCEEDED))
            return
        num_streams += 1
        body = json.dumps(failure.body()).encode() if num_streams == 1 else b'id: 1\ndata: {"step": 1}\n\n'
        send(handler, failure.status if num_streams == 1 else 200, body, length=len(body))

    with server(failing_once) as url, Client(url, "key") as client:
        assert [event.data for event in follow(client, "ftjob-1")] == [{"step": 1}]


def test_a_refused_stream_is_an_immediate_error() -> None:
    def not_found(handler: BaseHTTPRequestHandler) -> None:
        body = b'{"error": {"message": "no such job", "code": "job_not_found", "param": null}}'
        send(handler, 404, body, length=len(body))

    with server(not_found) as url, Client(url, "key") as client, pytest.raises(CommandError) as error:
        list(follow(client, "ftjob-1"))
    assert error.value.line() == (
        "no such job [code=job_not_found] See docs/reference/errors.md#job_not_found"
    )


def test_a_request_to_a_busy_service_is_retried() -> None:
    requested: list[str] = []

    def busy_once(handler: BaseHTTPRequestHandler) -> None:
        requested.append(handler.path)
        body = b'{"data": []}'
        send(handler, 503 if len(requested) == 1 else 200, body, length=len(body), Retry_After="0")

    with server(busy_once) as url, Client(url, "key") as client:
        assert client.get("/v1/models") == {"data": []}
    assert requested == ["/v1/models", "/v1/models"]


def test_events_are_parsed_across_any_chunks_and_keep_unicode_separators() -> None:
    raw = ': ping\r\n\r\nid: 7\r\nevent: event\r\ndata: {"a": "x\u2028y",\r\ndata: "b": 1}\r\n\r\ndata: {"z"'
    content = raw.encode()
    for width in (1, 2, 3, 1000):
        chunks = [content[start : start + width] for start in range(0, len(content), width)]
        (event,) = parse(chunks)
        assert (event.id, event.name, event.data) == ("7", "event", {"a": "x\u2028y", "b": 1})


def test_an_error_is_one_line_with_code_field_and_hint() -> None:
    error = CommandError("two\nlines", code="invalid_value", param="seed", hint="give a number")
    page = "docs/reference/errors.md#invalid_value"
    assert error.line() == f"two lines [code=invalid_value param=seed] Hint: give a number See {page}"
