"""WebSocket connections to other people's servers, under the same address rules as `web.py`.

The name is looked up once and the connection goes to a checked address. No redirects, proxy or compression.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from grpo_engine.outbound.addresses import AllowedHosts, addresses_of, parse

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection


async def connect(url: str, *, timeout_seconds: float, max_bytes: int) -> ClientConnection:
    """A connection to an http or https URL whose messages have at most `max_bytes`.

    Raises RefusedUrl, TimeoutError, OSError, ValueError for a redirect, or websockets' WebSocketException.
    """
    from websockets.asyncio.client import connect as open_connection

    from grpo_engine.outbound.pinned import MAX_ADDRESSES, tls_context

    target = parse(url, AllowedHosts.from_environment())
    secure = target.scheme == "https"
    async with asyncio.timeout(timeout_seconds):
        addresses = await asyncio.to_thread(addresses_of, target)
        connected = await _connected(addresses[:MAX_ADDRESSES], target.port)
        return await open_connection(
            f"{'wss' if secure else 'ws'}://{target.authority}{target.path}",
            sock=connected,  # with a socket of its own, websockets follows no redirect
            ssl=tls_context(os.environ.get("SSL_CERT_FILE")) if secure else None,
            proxy=None,
            compression=None,
            max_size=max_bytes,
            open_timeout=None,
            ping_interval=None,
            close_timeout=1.0,
            user_agent_header="grpo",
        )


async def _connected(addresses: Sequence[str], port: int) -> socket.socket:
    """A socket to the first address that accepts a connection. Raises OSError."""
    for place, address in enumerate(addresses):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        opened = socket.socket(family, socket.SOCK_STREAM)
        opened.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(opened, (address, port))
        except BaseException as error:
            opened.close()
            if place + 1 == len(addresses) or not isinstance(error, OSError):
                raise
        else:
            return opened
    raise OSError("no address")
