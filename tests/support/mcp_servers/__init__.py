"""MCP servers on 127.0.0.1: one of the official package, and one whose answers a test writes.

with served(official()) as url: ...        # GRPO_ALLOWED_HOSTS must name the host
with served(HostileServer(answer)) as url: ...
"""
