"""Which URLs and headers a user may set."""

import ipaddress
import socket

import pytest

from grpo_engine.outbound import addresses
from grpo_engine.outbound.addresses import AllowedHosts, RefusedUrl, as_address, check_url, is_public, parse
from grpo_engine.outbound.web import check_headers, post
from tests.support.hostile_urls import ACCEPTED, REFUSED


def unused(host: str, port: int) -> list[str]:
    raise AssertionError(f"{host} was looked up")


def test_hostile_urls_are_refused_before_any_look_up_or_connection(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "resolve", unused)
    assert len(REFUSED) >= 40
    for url in REFUSED:
        url = url.replace("PORT", str(listener.getsockname()[1]))
        with pytest.raises(RefusedUrl):
            check_url(url, allowed_hosts=AllowedHosts())
        with pytest.raises(RefusedUrl):
            post(url, b"", {}, timeout_seconds=1, allowed_hosts=AllowedHosts())


@pytest.mark.parametrize("url", ACCEPTED)
def test_public_https_is_accepted(url: str) -> None:
    check_url(url, allowed_hosts=AllowedHosts())


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:10.0.0.1",
        "fd00::1",
        "100.64.0.1",
        "fe80::1%1",
    ],
)
def test_a_name_with_a_private_address_is_refused_before_connecting(
    address: str, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found in ([address], ["8.8.8.8", address], [address, "8.8.8.8"]):
        monkeypatch.setattr(addresses, "resolve", lambda host, port, found=found: found)
        with pytest.raises(RefusedUrl, match=r"rebind\.example has an address that is not public"):
            post("https://rebind.example:8443/", b"", {}, timeout_seconds=1, allowed_hosts=AllowedHosts())


def test_the_operator_may_allow_a_host_or_one_of_its_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", " 127.0.0.1:8001, Judge.Example ,[::1]:9,")
    check_url("http://127.0.0.1:8001/v1")
    check_url("http://judge.example:5/v1")
    check_url("https://JUDGE.example/v1")
    check_url("http://[0::1]:9/")
    for url in ("http://127.0.0.1:8002/", "http://127.0.0.1/", "http://[::1]:8/", "http://ajudge.example/"):
        with pytest.raises(RefusedUrl):
            check_url(url)
    with pytest.raises(RefusedUrl, match="ftp is not http or https"):
        check_url("ftp://judge.example/")
    with pytest.raises(RefusedUrl, match="not a URL"):
        check_url("")
    with pytest.raises(RefusedUrl, match="contains credentials"):
        check_url("http://me@judge.example/")


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("https://judge.example", "judge.example", "/"),
        ("https://judge.example:443/v1?a=b", "judge.example", "/v1?a=b"),
        ("https://judge.example:80/?", "judge.example:80", "/"),
        ("http://judge.example:80/?a", "judge.example", "/?a"),
        ("http://judge.example:443/", "judge.example:443", "/"),
        ("https://[2606:4700::0]:8443/", "[2606:4700::]:8443", "/"),
    ],
)
def test_a_request_names_the_port_unless_it_is_the_scheme_s_default(
    url: str, authority: str, path: str
) -> None:
    target = parse(url, AllowedHosts(frozenset({"judge.example"})))
    assert (target.authority, target.path) == (authority, path)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"Host": "inside"}, "the header Host is reserved"),
        ({"content-length": "0"}, "is reserved"),
        ({"Transfer-Encoding": "chunked"}, "is reserved"),
        ({"Proxy-Authorization": "x"}, "is reserved"),
        ({"webhook-signature": "v1,x"}, "is reserved"),
        ({"X": "a\r\nHost: inside"}, "the header X has a line break"),
        ({"Authorization": "Bearer a\nX: b"}, "line break"),
        ({"X": "\x00"}, "line break"),
        ({"X": "é"}, "non-ASCII"),
        ({"X": "a" * 5000}, "too long"),
        ({"X\r\nY": "a"}, "a header name"),
        ({"X Y": "a"}, "a header name"),
        ({"": "a"}, "a header name"),
        ({"X": "1", "x": "2"}, "duplicate header"),
    ],
)
def test_headers_that_smuggle_others_are_refused(headers: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_headers(headers)


def test_ordinary_headers_are_accepted() -> None:
    check_headers({"Authorization": "Bearer abc", "X-Team": "a b", "Empty": ""})


def test_public_addresses_are_recognised_in_all_forms() -> None:
    public = ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"]
    assert all(is_public(ipaddress.ip_address(text)) for text in public)
    assert as_address("example.com") is None
