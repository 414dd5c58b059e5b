"""Clients that flood, drip, stop or send odd HTTP: refused without a trace, while others are served."""

import json
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.fuzz.serving import Api
from tests.service.job_samples import jsonl, row, upload
from tests.support.servers import wait_until

LIMIT = 4 * 2**20
GRACE_SECONDS = 2.0
ENVIRONMENT = {"GRPO_MAX_UPLOAD_BYTES": str(LIMIT), "GRPO_BODY_GRACE_SECONDS": str(GRACE_SECONDS)}
VALIDATE = "/v1/fine_tuning/alpha/graders/validate"
PART = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x.jsonl"\r\n\r\n'


def head(api: Api, line: str, *headers: str) -> bytes:
    """A request up to its body, with a key."""
    lines = [f"{line} HTTP/1.1", "Host: x", f"Authorization: Bearer {api.key}", *headers, "", ""]
    return "\r\n".join(lines).encode()


def upload_head(api: Api, *headers: str) -> bytes:
    return head(api, "POST /v1/files", "Content-Type: multipart/form-data; boundary=b", *headers)


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(content), content)


def answer(connection: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the next answer; status 0 where the server hung up without one."""
    with connection.makefile("rb") as file:
        line = file.readline()
        if not line:
            return 0, {}, b""
        headers = {}
        while (text := file.readline().decode().strip()) != "":
            name, _, value = text.partition(":")
            headers[name.lower()] = value.strip()
        length = headers.get("content-length")
        return int(line.split()[1]), headers, file.read(int(length) if length else -1)


def sent(api: Api, *pieces: bytes) -> tuple[int, dict[str, str], bytes]:
    """The answer to these bytes."""
    with api.connect() as connection:
        _send(connection, pieces)
        return answer(connection)


def _send(connection: socket.socket, pieces: Iterable[bytes]) -> None:
    try:
        for piece in pieces:
            connection.sendall(piece)
    except (BrokenPipeError, ConnectionResetError):
        return  # the server has answered and read no further


def code(body: bytes) -> Any:
    return json.loads(body)["error"]["code"]


def is_clean(api: Api) -> bool:
    with api.client() as client:
        is_listed = client.get("/v1/files").json()["data"] != []
    return not is_listed and api.stored() == [] and api.temporary_files() == []


def test_an_upload_that_declares_too_much_is_refused_before_its_body(api: Api) -> None:
    status, _, body = sent(api, upload_head(api, "Content-Length: 90000000000"))
    assert (status, code(body)) == (413, "payload_too_large")
    assert is_clean(api)


def test_a_chunked_upload_is_refused_at_the_limit(api: Api) -> None:
    flood = [chunk(b"x" * 2**20)] * (LIMIT // 2**20 + 1)
    status, _, body = sent(api, upload_head(api, "Transfer-Encoding: chunked"), chunk(PART), *flood)
    assert (status, code(body)) == (413, "payload_too_large")
    wait_until(lambda: is_clean(api), what="nothing is left of the flood")


@pytest.mark.parametrize("line", ["POST /v1/files", "PATCH /v1/files/file-x"])
def test_json_without_a_key_is_refused_before_it_is_as_long_as_an_upload(api: Api, line: str) -> None:
    framing = "Content-Type: application/json\r\nTransfer-Encoding: chunked"
    request_head = f"{line} HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n".encode()
    unfinished = chunk(b" " * (2**20 + 2**16))
    status, _, body = sent(api, request_head, unfinished)
    assert (status, code(body)) == (413, "payload_too_large")


def test_an_upload_whose_client_disconnects_leaves_nothing(api: Api) -> None:
    with api.connect() as connection:
        connection.sendall(upload_head(api, "Content-Length: 4000000") + PART + b"x" * 3_000_000)
        wait_until(api.temporary_files, what="the upload has begun")
    wait_until(lambda: is_clean(api), what="nothing is left of the upload")


@pytest.mark.parametrize("request_head", ["POST /v1/files", f"POST {VALIDATE}"])
def test_a_body_that_drips_is_refused_and_its_connection_closed(api: Api, request_head: str) -> None:
    kind = "multipart/form-data; boundary=b" if "files" in request_head else "application/json"
    with api.connect() as connection:
        connection.sendall(head(api, request_head, f"Content-Type: {kind}", "Content-Length: 1000") + b"-")
        with api.client() as other:
            assert other.get("/v1/models").status_code == 200
        status, headers, body = answer(connection)
        assert (status, code(body), headers["connection"]) == (408, "request_timeout", "close")
        assert connection.recv(1) == b""
    assert is_clean(api)


def test_a_slow_body_that_moves_is_waited_for(api: Api) -> None:
    body = json.dumps({"grader": {"type": "length", "max": 4}, "x": "y" * 80_000}).encode()
    with api.connect() as connection:
        lines = "Content-Type: application/json", f"Content-Length: {len(body)}"
        connection.sendall(head(api, f"POST {VALIDATE}", *lines) + body[:-1])
        connection.settimeout(2 * GRACE_SECONDS)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(60)
        connection.sendall(body[-1:])
        assert answer(connection)[0] == 400


def test_fifty_uploads_at_once_are_all_stored_whole(api: Api) -> None:
    contents = [jsonl(*(row(f"What is {number}?", "y" * 1000) for _ in range(20))) for number in range(50)]
    with ThreadPoolExecutor(50) as pool, api.client() as client:
        stored = list(pool.map(lambda content: upload(client, content), contents))
        assert [client.get(f"/v1/files/{file_id}/content").content for file_id in stored] == contents
        for file_id in stored:
            client.delete(f"/v1/files/{file_id}")
    assert is_clean(api)


def test_a_body_of_two_lengths_is_refused_and_its_rest_never_read_as_a_request(api: Api) -> None:
    lengths = ("Content-Type: application/json", "Content-Length: 4", "Transfer-Encoding: chunked")
    smuggled = head(api, "DELETE /v1/models/x")
    with api.connect() as connection:
        connection.sendall(head(api, f"POST {VALIDATE}", *lengths) + chunk(b"{}") + b"0\r\n\r\n" + smuggled)
        status, headers, body = answer(connection)
        assert (status, code(body), headers["connection"]) == (400, "invalid_body", "close")
        assert connection.recv(1) == b""


@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Length: 2", "Content-Length: 3"],
        ["Content-Length: -2"],
        ["Content-Length: 0x2"],
        ["Content-Length: 2, 3"],
        ["Transfer-Encoding: xchunked"],
        ["Transfer-Encoding : chunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: identity"],
        ["X: a\0b"],
        ["X: " + "a" * 200_000],
        [f"X-{number}: 1" for number in range(20_000)],
        ["no colon"],
    ],
    ids=lambda headers: headers[0][:40],
)
def test_a_request_that_can_be_read_in_two_ways_or_is_endless_ends_its_connection(
    api: Api, headers: list[str]
) -> None:
    with api.connect() as connection:
        _send(connection, [head(api, f"POST {VALIDATE}", *headers) + b"{}"])
        try:
            status = answer(connection)[0]
        except ConnectionResetError:  # what it never read made the system reset the connection
            status = 0
    assert status in (0, 400)
    assert sent(api, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 200


def test_a_body_that_ends_early_is_not_a_request(api: Api) -> None:
    body = b'{"grader": {"type": "length", "max": 4}}'
    with api.connect() as connection:
        declared = f"Content-Length: {len(body) + 1}"
        connection.sendall(head(api, f"POST {VALIDATE}", "Content-Type: application/json", declared) + body)
        connection.shutdown(socket.SHUT_WR)
        assert answer(connection)[0] in (0, 400)


def test_old_and_pipelined_requests_are_answered_in_order(api: Api) -> None:
    assert sent(api, b"GET /livez HTTP/1.0\r\n\r\n")[0] == 200
    with api.connect() as connection:
        connection.sendall(
            b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" + head(api, "GET /v1/nothing", "Connection: close")
        )
        with connection.makefile("rb") as file:
            text = file.read()
    assert [line.split()[1] for line in text.split(b"\r\n") if b"HTTP/1.1 " in line] == [b"200", b"404"]
