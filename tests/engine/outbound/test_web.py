"""One request to a server that may do anything."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grpo_engine.outbound import addresses
from grpo_engine.outbound.addresses import AllowedHosts
from grpo_engine.outbound.web import AnswerTooLong, NoAnswer, post
from tests.support.chat_server import Recorded, Reply, ScriptedServer

SECONDS = 60
"""A limit that no answer of these servers needs."""


def ask(server: ScriptedServer, **options: object) -> object:
    return post(server.url, b"{}", {}, timeout_seconds=SECONDS, allowed_hosts=trusting(server), **options)  # type: ignore[arg-type]


def trusting(server: ScriptedServer) -> AllowedHosts:
    return AllowedHosts(frozenset({server.host}))


@contextlib.contextmanager
def raw_server(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """The host of a server that handles one connection with `serve`; it may be that none comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def run() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as connection:
                serve(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)  # ends `accept`
            thread.join()


def test_a_name_is_looked_up_once_and_the_connection_goes_to_the_address_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def changing(host: str, port: int) -> list[str]:
        asked.append((host, port))
        return ["127.0.0.1"] if len(asked) == 1 else ["192.0.2.1"]

    monkeypatch.setattr(addresses, "resolve", changing)
    with ScriptedServer(lambda recorded: "yes") as server:
        port = int(server.host.rpartition(":")[2])
        allowed_hosts = AllowedHosts(frozenset({f"judge.example:{port}"}))
        url = f"http://judge.example:{port}/a?b=c"
        answer = post(url, b"x", {}, timeout_seconds=SECONDS, allowed_hosts=allowed_hosts)
    assert answer.body == b"yes"
    assert asked == [("judge.example", port)]
    assert server.requests[0].path == "/a?b=c"
    assert server.requests[0].headers["host"] == f"judge.example:{port}"


def test_the_next_address_is_tried_if_the_first_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "resolve", lambda host, port: ["::1", "127.0.0.1"])
    with ScriptedServer(lambda recorded: "yes") as server:
        port = int(server.host.rpartition(":")[2])
        answer = post(
            f"http://judge.example:{port}/",
            b"",
            {},
            timeout_seconds=SECONDS,
            allowed_hosts=AllowedHosts(frozenset({"judge.example"})),
        )
    assert answer.status == 200


def test_a_host_that_the_operator_allows_may_be_private_and_plain_http() -> None:
    with ScriptedServer(lambda recorded: {"echo": recorded.body.decode()}) as server:
        answer = post(
            server.url, b"hello", {"X-Mine": "1"}, timeout_seconds=SECONDS, allowed_hosts=trusting(server)
        )
    assert (answer.status, answer.body) == (200, b'{"echo": "hello"}')
    assert answer.headers["content-type"] == "application/json"
    sent = server.requests[0].headers
    assert (sent["x-mine"], sent["accept-encoding"], sent["content-length"]) == ("1", "identity", "5")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_an_answer_and_is_not_followed(status: int) -> None:
    with ScriptedServer(lambda recorded: "inside") as inside:
        reply = Reply(status=status, headers={"Location": inside.url})
        with ScriptedServer(lambda recorded: reply) as server:
            allowed_hosts = AllowedHosts(frozenset({server.host, inside.host}))
            answer = post(server.url, b"", {}, timeout_seconds=SECONDS, allowed_hosts=allowed_hosts)
    assert answer.status == status
    assert inside.requests == []


def test_no_proxy_of_the_environment_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ScriptedServer(lambda recorded: "proxy") as proxy, ScriptedServer(lambda recorded: "real") as server:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://{proxy.host}")
        assert ask(server).body == b"real"  # type: ignore[attr-defined]
    assert proxy.requests == []


def test_an_answer_that_does_not_end_is_cut() -> None:
    endless = ScriptedServer(lambda recorded: Reply(flood_bytes=2**30))
    with endless as server, pytest.raises(AnswerTooLong, match="longer than 1048576 bytes"):
        ask(server)
    with ScriptedServer(lambda recorded: Reply(flood_bytes=2**20)) as server:
        assert len(ask(server).body) == 2**20  # type: ignore[attr-defined]


def test_with_kept_bytes_no_more_is_read() -> None:
    with ScriptedServer(lambda recorded: Reply(status=201, flood_bytes=2**30)) as server:
        answer = ask(server, kept_bytes=1000)
    assert (answer.status, len(answer.body)) == (201, 1000)  # type: ignore[attr-defined]
    with ScriptedServer(lambda recorded: "short") as server:
        assert ask(server, kept_bytes=5).body == b"short"  # type: ignore[attr-defined]


@pytest.mark.parametrize("ending", ["cut", "silence"])
def test_with_kept_bytes_the_status_counts_even_if_the_body_does_not_end(ending: str) -> None:
    over = threading.Event()

    def begin(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.send(b"HTTP/1.1 410 Gone\r\nContent-Length: 100\r\n\r\nbegun")
        if ending == "silence":
            over.wait()

    with raw_server(begin) as host:
        allowed = AllowedHosts(frozenset({host}))
        seconds = SECONDS if ending == "cut" else 1.0
        answer = post(
            f"http://{host}/", b"", {}, timeout_seconds=seconds, allowed_hosts=allowed, kept_bytes=9
        )
        over.set()
    assert (answer.status, answer.body) == (410, b"begun")


@pytest.mark.parametrize("reply", [Reply(stall=True), Reply(body=b"x" * 10_000, drip_seconds=0.02)])
def test_silence_and_dripping_end_at_the_time_limit(reply: Reply) -> None:
    with ScriptedServer(lambda recorded: reply) as server:
        start = time.monotonic()
        with pytest.raises(NoAnswer, match=r"127\.0\.0\.1 did not answer within 0\.3 s"):
            post(server.url, b"", {}, timeout_seconds=0.3, allowed_hosts=trusting(server))
        assert 0.25 < time.monotonic() - start < SECONDS


def test_headers_that_drip_end_at_the_time_limit() -> None:
    """One byte at a time renews a timeout per read, but not a deadline."""
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nX: " + b"a" * 10_000:
            if over.wait(0.02):
                return
            connection.send(bytes([byte]))

    with raw_server(drip) as host:
        with pytest.raises(NoAnswer, match="did not answer within"):
            post(
                f"http://{host}/", b"", {}, timeout_seconds=0.3, allowed_hosts=AllowedHosts(frozenset({host}))
            )
        over.set()


def test_a_server_that_hangs_up_or_is_missing_gives_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        ScriptedServer(lambda recorded: Reply(drop=True)) as server,
        pytest.raises(NoAnswer, match="disconnect"),
    ):
        ask(server)
    with pytest.raises(NoAnswer, match="refused"):
        ask(server)
    monkeypatch.setattr(addresses, "resolve", no_address)
    with pytest.raises(NoAnswer, match=r"nowhere\.invalid has no address"):
        post("https://nowhere.invalid/", b"", {}, timeout_seconds=SECONDS, allowed_hosts=AllowedHosts())


def no_address(host: str, port: int) -> list[str]:
    raise socket.gaierror(socket.EAI_NONAME, "not known")


@pytest.mark.parametrize(
    ("start", "flood"),
    [
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 500),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: " + b"x" * 8000 + b"\r\n\r\n"),
        (b"HTTP/1.1 200 ", b"y" * 65_536),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 1000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 5000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"a" * 65_536),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n0\r\n", b"X: y\r\n" * 1000),
        (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n", b"x" * 65_536),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9" + b"9" * 20 + b"\r\n\r\n", b"x" * 65_536),
    ],
)
def test_a_flood_of_any_part_of_an_answer_ends_within_the_time_limit(start: bytes, flood: bytes) -> None:
    def pour(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.sendall(start)
        while True:
            connection.sendall(flood)

    with raw_server(pour) as host, pytest.raises(NoAnswer):
        post(f"http://{host}/", b"", {}, timeout_seconds=0.4, allowed_hosts=AllowedHosts(frozenset({host})))


def test_garbage_instead_of_http_gives_no_answer() -> None:
    def babble(connection: socket.socket) -> None:
        connection.recv(65_536)
        connection.send(b"\x00\xff" * 100 + b"\r\n\r\n")

    with raw_server(babble) as host, pytest.raises(NoAnswer):
        post(
            f"http://{host}/", b"", {}, timeout_seconds=SECONDS, allowed_hosts=AllowedHosts(frozenset({host}))
        )


def tls_server(certificate: tuple[Path, Path], seen: list[str | None]) -> ScriptedServer:
    def answer(recorded: Recorded) -> str:
        return recorded.headers["host"]

    server = ScriptedServer(answer)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    context.sni_callback = lambda connection, name, _: seen.append(name)
    server.wrap(context)
    return server


def test_over_tls_the_name_is_checked_while_the_connection_goes_to_the_address(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    seen: list[str | None] = []
    with tls_server(certificate, seen) as server:
        port = server.host.rpartition(":")[2]
        allowed_hosts = AllowedHosts(frozenset({f"judge.example:{port}", f"other.example:{port}"}))

        monkeypatch.setattr(addresses, "resolve", lambda host, port: ["127.0.0.1"])

        def fetch(host: str) -> bytes:
            url = f"https://{host}:{port}/"
            return post(url, b"", {}, timeout_seconds=SECONDS, allowed_hosts=allowed_hosts).body

        assert fetch("judge.example") == f"judge.example:{port}".encode()
        with pytest.raises(NoAnswer, match="certificate verify failed"):
            fetch("other.example")
    assert seen == ["judge.example", "other.example"]
    assert len(server.requests) == 1


def test_an_unknown_authority_is_refused(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "resolve", lambda host, port: ["127.0.0.1"])
    with tls_server(certificate, []) as server:
        allowed_hosts = AllowedHosts(frozenset({"judge.example"}))
        url = f"https://judge.example:{server.host.rpartition(':')[2]}/"
        with pytest.raises(NoAnswer, match="certificate verify failed"):
            post(url, b"", {}, timeout_seconds=SECONDS, allowed_hosts=allowed_hosts)
