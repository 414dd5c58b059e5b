"""Ports and network interfaces of a rank's host."""

import fcntl
import socket
import struct

SIOCGIFADDR = 0x8915
"""Linux's request for the IPv4 address of an interface (netdevice(7))."""


def free_port() -> int:
    """A port that no process uses now."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def interface_towards(host: str) -> str:
    """Name of the interface through which packets to `host` leave. Raises OSError if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, 9))  # sends nothing
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            if _address_of(probe, name) == own:
                return name
    raise OSError(f"no interface has the address {own}")


def _address_of(opened: socket.socket, interface: str) -> str | None:
    request = struct.pack("256s", interface.encode()[:15])
    try:
        answer = fcntl.ioctl(opened.fileno(), SIOCGIFADDR, request)
    except OSError:  # it has no IPv4 address
        return None
    return socket.inet_ntoa(answer[20:24])
