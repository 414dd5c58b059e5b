"""The session of one episode with its environment."""

import asyncio
from collections.abc import Mapping
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
        self._session: Session | None = None

    async def start(self, arguments: Mapping[str, Any]) -> Observation:
        """Wait for a place and reset. Raises EnvironmentFailure."""
        await self._places.acquire()
        try:
            self._session, first = await open_session(
                self.options.url, arguments, timeout_seconds=self.options.timeout_seconds
            )
        except RefusedUrl as error:
            self._places.release()
            raise EnvironmentFailure(f"the address is refused: {error}") from None
        except BaseException:
            self._places.release()
            raise
        return first

    async def step(self, action: Mapping[str, Any]) -> Observation:
        """Raises EnvironmentFailure, RefusedAction."""
        assert self._session is not None, "start comes before step"
        return await self._session.step(action)

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        try:
            await session.close()
        finally:
            self._places.release()
