"""Which URLs may be requested: https, public names, public addresses, and what the operator allows.

Sources: OWASP's notes on server-side request forgery; the IANA special-purpose address registries.
Boundary: no connection is opened here. `web.py` connects only to addresses that `addresses_of` returned,
because a name does not show where it leads.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

MAX_URL_CHARACTERS = 2048
PORTS = (443, 8443)
INNER_NAMES = ("localhost", "localdomain", "local", "internal", "intranet", "lan", "home", "corp", "private")
"""Last labels of names that are never hosts of the public Internet. `home.arpa` is refused as well."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_HOST = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_URL = re.compile(r"[!#$%&'()*+,\-./0-9:;=?@A-Z\[\]_a-z~]+")
_UNICAST = ipaddress.ip_network("2000::/3")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_REFUSED = tuple(
    ipaddress.ip_network(text)
    for text in (
        "168.63.129.16/32",  # Azure's host agent: a public address that is reachable only inside Azure
        "192.0.0.0/24",
        "192.88.99.0/24",
        "3fff::/20",
        "2001::/23",
        "2001:db8::/32",
    )
)


class RefusedUrl(ValueError):
    """This URL may not be requested; the message gives the reason."""


@dataclass(frozen=True)
class Target:
    """The parts of a URL, which is parsed once only."""

    scheme: str
    host: str
    """Lower case, an IPv6 address without brackets."""
    port: int
    path: str
    """Path and query."""
    trusted: bool
    """The operator allows this host: plain http, any port and private addresses are accepted."""

    @property
    def authority(self) -> str:
        """The Host header."""
        default = 443 if self.scheme == "https" else 80
        return _bracketed(self.host) + ("" if self.port == default else f":{self.port}")


@dataclass(frozen=True)
class AllowedHosts:
    """What the operator allows beyond public https: `host:port`, or `host` for all its ports."""

    allowed: frozenset[str] = frozenset()

    @classmethod
    def from_environment(cls) -> AllowedHosts:
        """The hosts in GRPO_ALLOWED_HOSTS."""
        return cls.listed(os.environ.get("GRPO_ALLOWED_HOSTS", ""))

    @classmethod
    def listed(cls, hosts: str) -> AllowedHosts:
        """Comma-separated hosts."""
        return cls(frozenset(entry.strip().lower() for entry in hosts.split(",") if entry.strip()))

    def trusting(self, url: str) -> AllowedHosts:
        """This policy plus the host and port of a URL that the operator wrote. Raises RefusedUrl."""
        _, host, port, _ = _split_url(url)
        return AllowedHosts(self.allowed | {f"{_bracketed(host)}:{port}"})

    def permits(self, host: str, port: int) -> bool:
        shown = _bracketed(host)
        return shown in self.allowed or f"{shown}:{port}" in self.allowed


def check_url(url: str, *, allowed_hosts: AllowedHosts | None = None) -> str:
    """Return the URL if it is acceptable; its name is not looked up. Raises RefusedUrl."""
    parse(url, allowed_hosts or AllowedHosts.from_environment())
    return url


def parse(url: str, allowed_hosts: AllowedHosts) -> Target:
    """The URL's parts. Raises RefusedUrl; a name is not looked up here."""
    scheme, host, port, path = _split_url(url)
    trusted = allowed_hosts.permits(host, port)
    if not trusted:
        _check_public(scheme, host, port)
    return Target(scheme, host, port, path, trusted)


def _split_url(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and path with query. There is only this one strict parser, so none can disagree."""
    if len(url) > MAX_URL_CHARACTERS:
        raise RefusedUrl(f"longer than {MAX_URL_CHARACTERS} characters")
    if not url:
        raise RefusedUrl("not a URL")
    if not _URL.fullmatch(url):
        raise RefusedUrl("invalid character: write it as %XX, or host names in punycode")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise RefusedUrl("not a URL") from None
    if "@" in parts.netloc:
        raise RefusedUrl("contains credentials")
    if "#" in url:
        raise RefusedUrl("contains a fragment")
    if parts.scheme not in ("http", "https"):
        raise RefusedUrl(f"{parts.scheme or 'no scheme'} is not http or https")
    default = 443 if parts.scheme == "https" else 80
    host = _check_host(parts.netloc, parts.hostname or "")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return parts.scheme, host, default if port is None else port, path


def _check_host(netloc: str, host: str) -> str:
    """The canonical host. An address is accepted in its usual form only."""
    if netloc.startswith("["):
        if not re.fullmatch(r"\[[0-9a-fA-F:.]+\](:\d+)?", netloc):
            raise RefusedUrl("not an IPv6 address")
        try:
            return str(ipaddress.IPv6Address(host))
        except ValueError:
            raise RefusedUrl("not an IPv6 address") from None
    host = host.removesuffix(".")
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise RefusedUrl("not a host name")
    if re.fullmatch(r"\d+|0x[0-9a-f]*", host.rpartition(".")[2]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise RefusedUrl("not an IPv4 address in its usual form") from None
    return host


def _check_public(scheme: str, host: str, port: int) -> None:
    if scheme != "https":
        raise RefusedUrl("not https")
    if port not in PORTS:
        raise RefusedUrl(f"port {port}: only {' and '.join(map(str, PORTS))} are allowed")
    address = as_address(host)
    if address is not None:
        if not is_public(address):
            raise RefusedUrl(f"{address} is not a public address")
        return
    labels = host.split(".")
    if len(labels) == 1 or labels[-1] in INNER_NAMES or labels[-2:] == ["home", "arpa"]:
        raise RefusedUrl(f"{host} is not a public name")


def as_address(host: str) -> Address | None:
    """The text as an address; None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether it is a host of the public Internet; an IPv4 address inside an IPv6 address is checked too."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _inner_address(address)
        if inner is not None:
            return is_public(inner)
        if address not in _UNICAST:
            return False
    if any(address in network for network in _REFUSED):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _inner_address(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address inside a mapped, NAT64 or 6to4 address."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.sixtofour


def resolve(host: str, port: int) -> list[str]:
    """Addresses of a name from the system's resolver. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def addresses_of(target: Target) -> list[str]:
    """Addresses to connect to: one look-up; all must be public. Raises RefusedUrl, OSError."""
    found = resolve(target.host, target.port)
    if not found:
        raise OSError(f"{target.host} has no address")
    if not target.trusted:
        for text in found:
            address = as_address(text)
            if address is None or not is_public(address):
                raise RefusedUrl(f"{target.host} has an address that is not public")
    return found


def check_destination(url: str, allowed_hosts: AllowedHosts) -> None:
    """Like `check_url`, but also refuse a name that has a private address now. Raises RefusedUrl.

    A name without an address is accepted: it may get one, and each request checks again.
    """
    target = parse(url, allowed_hosts)
    with suppress(OSError, UnicodeError):
        addresses_of(target)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
