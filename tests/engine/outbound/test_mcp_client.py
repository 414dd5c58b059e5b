"""The MCP client's connections: TLS names, addresses."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.outbound import addresses
from grpo_engine.outbound.mcp_client import McpFailure, McpServer, McpSessions
from tests.support.mcp_servers.hostile import HostileServer, tool
from tests.support.mcp_servers.official import served


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> Iterator[McpSessions]:
    """Sessions in which every name resolves to an unreachable address, followed by this machine's."""
    monkeypatch.setattr(addresses, "resolve", lambda host, port: ["127.0.0.9", "127.0.0.1"])
    opened = McpSessions()
    yield opened
    opened.close()


def test_over_tls_the_name_is_checked_while_the_connection_goes_to_the_address(
    certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, sessions: McpSessions
) -> None:
    chain, key = map(str, certificate)
    monkeypatch.setenv("SSL_CERT_FILE", chain)
    monkeypatch.setenv("GRPO_ALLOWED_HOSTS", "judge.example,other.example")

    async def tools(message: dict[str, Any], send: Any) -> dict[str, Any]:
        return {"tools": [tool("add")]}

    server = HostileServer(tools)
    with served(server, ssl_certfile=chain, ssl_keyfile=key) as url:
        port = url.split(":")[2].split("/")[0]
        found = sessions.tools(McpServer(f"https://judge.example:{port}", {}, 10))
        assert [each["name"] for each in found] == ["add"]
        with pytest.raises(McpFailure, match="certificate verify failed"):
            sessions.tools(McpServer(f"https://other.example:{port}", {}, 10))
        monkeypatch.setenv("SSL_CERT_FILE", "")
        with pytest.raises(McpFailure, match="certificate verify failed"):
            sessions.call(McpServer(f"https://judge.example:{port}", {}, 10), "r", "add", {})
    assert {headers["host"] for _, headers, _ in server.requests} == {f"judge.example:{port}"}
