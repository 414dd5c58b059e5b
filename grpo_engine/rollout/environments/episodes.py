"""The session of one episode with its environment."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

from grpo_engine.config.environments import OpenEnvEnvironment
from grpo_engine.outbound.addresses import RefusedUrl
from grpo_engine.outbound.openenv import EnvironmentFailure, Observation, Session, open_session


class EpisodeSession:
    """From `start` to `close`; both run in one event loop."""

    def __init__(self, options: OpenEnvEnvironment, places: asyncio.Semaphore) -> None:
        """`places`: bounds the open sessions of the environment."""
        self.options = options
        self._places = places
        self._opened = AsyncExitStack()
        self._session: Session

    async def start(self, arguments: Mapping[str, Any]) -> Observation:
        """Wait for a place and reset. Raises EnvironmentFailure."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._places)
            try:
                self._session, first = await open_session(
                    self.options.url, arguments, timeout_seconds=self.options.timeout_seconds
                )
            except RefusedUrl as error:
                raise EnvironmentFailure(f"the address is refused: {error}") from None
            stack.push_async_callback(self._session.close)
            self._opened = stack.pop_all()
        return first

    async def step(self, action: Mapping[str, Any]) -> Observation:
        """Raises EnvironmentFailure, RefusedAction."""
        return await self._session.step(action)

    async def close(self) -> None:
        await self._opened.aclose()
