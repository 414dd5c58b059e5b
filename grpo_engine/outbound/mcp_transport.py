"""HTTP for the official MCP client, under the address rules of `web.py`.

The host is looked up once per session and every connection goes to a checked address, with the name in TLS
and Host. No redirects, proxy, decompression or streams that the server opens on its own (GET). The bytes of
each response and of the whole session are bounded; the caller bounds the time.
"""

import os
from collections.abc import AsyncIterator

import anyio
import anyio.to_thread
import httpx2
from mcp_types import INTERNAL_ERROR

from grpo_engine.outbound.addresses import AllowedHosts, addresses_of, parse
from grpo_engine.outbound.pinned import MAX_ADDRESSES, tls_context
from grpo_engine.outbound.web import MAX_ANSWER_BYTES

MAX_SESSION_BYTES = 2**24
CLOSE_SECONDS = 3.0
"""Time limit of the request that ends a session."""


class UnacceptableAnswer(httpx2.TransportError):
    """The request got no acceptable answer; the message gives the reason."""


class PinnedTransport(httpx2.AsyncBaseTransport):
    """Transport of one session. Raises RefusedUrl if its URL may not be requested."""

    def __init__(self, url: str) -> None:
        self.target = parse(url, AllowedHosts.from_environment())
        self.failure = ""
        """Why an answer was too long; the MCP client reports only that its stream of events ended."""
        self._addresses: list[str] = []
        self.room = MAX_SESSION_BYTES
        """Bytes that the session may still receive."""
        self._inner = httpx2.AsyncHTTPTransport(
            verify=tls_context(os.environ.get("SSL_CERT_FILE")),
            trust_env=False,
            limits=httpx2.Limits(max_keepalive_connections=0),
        )

    async def look_up(self) -> None:
        """Find the host's addresses. Raises RefusedUrl if one may not be connected to, OSError."""
        found = await anyio.to_thread.run_sync(addresses_of, self.target, abandon_on_cancel=True)
        self._addresses = found[:MAX_ADDRESSES]

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """The server's response, or one that gives the reason: an exception would end the whole session."""
        if request.method == "GET":
            return httpx2.Response(405)
        try:
            return await self._response(request)
        except httpx2.TransportError as error:
            reason = {"code": INTERNAL_ERROR, "message": str(error) or type(error).__name__}
            return httpx2.Response(502, json={"jsonrpc": "2.0", "id": None, "error": reason})

    async def _response(self, request: httpx2.Request) -> httpx2.Response:
        is_end = request.method == "DELETE"
        with anyio.fail_after(CLOSE_SECONDS if is_end else None):
            response = await self._send(request)
        compressed = response.headers.get("content-encoding", "identity") != "identity"
        if is_end or response.is_redirect or compressed:
            await response.aclose()
        if is_end:
            return httpx2.Response(response.status_code)
        if response.is_redirect or compressed:
            raise UnacceptableAnswer(
                "the answer is compressed" if compressed else "redirects are not followed"
            )
        return await self._bounded(response, "mcp-session-id" in request.headers)

    async def _bounded(self, response: httpx2.Response, in_session: bool) -> httpx2.Response:
        """The response, read to its end if it is JSON or an error. Raises TransportError."""
        status, headers, stream = response.status_code, response.headers, _Bounded(self, response)
        is_json = headers.get("content-type", "").lower().startswith("application/json")
        if status == 202 or (status < 400 and not is_json):
            return httpx2.Response(status, headers=headers, stream=stream)
        try:
            body = b"".join([part async for part in stream])
        finally:
            await stream.aclose()
        has_lost_session = status == 404 and in_session
        if status >= 400 and not has_lost_session and b'"jsonrpc"' not in body:
            raise UnacceptableAnswer(f"status {status}")
        return httpx2.Response(status, headers=headers, content=body)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """The response from the first address that accepts a connection."""
        target, path = self.target, self.target.path.encode("ascii")
        extensions = {**request.extensions, "sni_hostname": target.host}
        headers = {**request.headers, "host": target.authority, "accept-encoding": "identity"}
        reason = "no address"
        for address in self._addresses:
            url = httpx2.URL(scheme=target.scheme, host=address, port=target.port, raw_path=path)
            pinned = httpx2.Request(
                request.method, url, headers=headers, stream=request.stream, extensions=extensions
            )
            try:
                return await self._inner.handle_async_request(pinned)
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                reason = str(error)
        raise UnacceptableAnswer(f"no connection: {reason[:200]}")

    def refused(self, reason: str) -> UnacceptableAnswer:
        """The error to raise; it is also the session's `failure`."""
        self.failure = reason
        return UnacceptableAnswer(reason)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    def __init__(self, transport: PinnedTransport, response: httpx2.Response) -> None:
        self._transport = transport
        self._response = response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        answered = 0
        assert isinstance(self._response.stream, httpx2.AsyncByteStream)
        async for part in self._response.stream:
            answered += len(part)
            if answered > MAX_ANSWER_BYTES:
                raise self._transport.refused(f"the answer is longer than {MAX_ANSWER_BYTES} bytes")
            self._transport.room -= len(part)
            if self._transport.room < 0:
                raise self._transport.refused(f"the session has received more than {MAX_SESSION_BYTES} bytes")
            yield part

    async def aclose(self) -> None:
        await self._response.aclose()
