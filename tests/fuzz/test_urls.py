"""Any spelling of a URL: what is accepted is https to a public address, for every parser that may read it."""

import ipaddress
import socket
from contextlib import suppress
from urllib.parse import urlsplit

import httpcore
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_engine.outbound.addresses import (
    INNER_NAMES,
    PORTS,
    AllowedHosts,
    RefusedUrl,
    Target,
    addresses_of,
    is_public,
    parse,
)

NUMBERS = st.integers(0, 2**33) | st.sampled_from([0, 1, 10, 127, 169, 172, 192, 254, 255, 256, 2130706433])
PARTS = NUMBERS.flatmap(lambda n: st.sampled_from([str(n), oct(n).replace("o", ""), hex(n), hex(n).upper()]))
NUMERIC = st.lists(PARTS, min_size=1, max_size=5).map(".".join)
PLAIN_IPV4 = st.ip_addresses(v=4).map(str)
IPV6 = st.ip_addresses(v=6) | st.builds(
    lambda prefix, inner: ipaddress.IPv6Address((prefix << 32) | int(inner)),
    st.sampled_from([0, 0xFFFF, 0x64FF9B << 64, 0xFFFF << 32]),
    st.ip_addresses(v=4),
)
SIXTOFOUR = st.ip_addresses(v=4).map(lambda inner: ipaddress.IPv6Address(0x2002 << 112 | int(inner) << 80))
BRACKETED = (
    (IPV6 | SIXTOFOUR)
    .flatmap(
        lambda address: st.sampled_from(
            [str(address), address.exploded, f"::{ipaddress.IPv4Address(int(address) % 2**32)}"]
        )
    )
    .map(lambda text: f"[{text}]")
)
LABELS = st.text("abcxyz019-_", min_size=1, max_size=8) | st.sampled_from(
    ["localhost", *INNER_NAMES, "com", "xn--e1afmkfd"]
)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
HOSTS = NUMERIC | PLAIN_IPV4 | BRACKETED | NAMES
NOISE = st.sampled_from(
    ["", "", "", "@", "a@", "a:b@", "%", "\\", "/", "#", "?", "\t", "\n", ".", "。", "%00", "é"]
)
URLS = st.builds(
    "{}{}{}{}{}{}".format,
    st.sampled_from(
        ["https://", "https://", "https://", "http://", "HTTPS://", "https:/", "https:", "//", "ftp://"]
    ),
    NOISE,
    HOSTS,
    NOISE,
    st.sampled_from(["", "", ":443", ":8443", ":80", ":22", ":", ":0443", ":-1", ":443@x"]),
    st.sampled_from(["", "/", "/a?b=c", "?x", "#f", "/../x", "//127.0.0.1"]),
)


@given(URLS)
@example("https://8.8.8.8/")
@example("https://judge.example:8443/a?b=c")
def test_an_accepted_url_is_public_https_for_every_parser(url: str) -> None:
    with suppress(RefusedUrl):
        target = parse(url, AllowedHosts())
        assert (target.scheme, target.port in PORTS, target.trusted) == ("https", True, False)
        assert "@" not in url
        _check_host(target)
        _check_others_agree(url, target)


def _check_host(target: Target) -> None:
    """The system's resolver reads every numeric spelling: none may mean an inner address."""
    try:
        found = socket.getaddrinfo(target.host, None, flags=socket.AI_NUMERICHOST)
    except OSError:
        labels = target.host.split(".")
        assert len(labels) > 1
        assert labels[-1] not in INNER_NAMES
        return
    for *_, place in found:
        assert is_public(ipaddress.ip_address(place[0])), target.host


def _check_others_agree(url: str, target: Target) -> None:
    host = (urlsplit(url).hostname or "").removesuffix(".")
    theirs = httpcore.URL(url)
    assert theirs.host.decode().strip("[]").lower().removesuffix(".") == host
    assert (theirs.port or 443) == target.port
    if ":" in host:
        assert ipaddress.IPv6Address(host) == ipaddress.IPv6Address(target.host)
    else:
        assert host == target.host


@given(st.text() | URLS.flatmap(lambda url: st.text().map(lambda rest: url + rest)))
def test_any_text_is_a_url_or_refused(url: str) -> None:
    with suppress(RefusedUrl):
        parse(url, AllowedHosts())


@given(st.lists(st.ip_addresses(), min_size=1, max_size=4))
def test_a_host_is_called_only_if_all_its_addresses_are_public(
    addresses: list[ipaddress.IPv4Address],
) -> None:
    target = parse("https://judge.example/", AllowedHosts())
    found = [str(address) for address in addresses]
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("grpo_engine.outbound.addresses.resolve", lambda host, port: found)
            assert addresses_of(target) == found
    except RefusedUrl:
        assert not all(address.is_global and is_public(address) for address in addresses)
    else:
        assert all(is_public(address) for address in addresses)
