"""Sessions of a step's episodes, all in one asyncio loop in a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self

from grpo_engine.config.environments import OpenEnvEnvironment
from grpo_engine.outbound.addresses import RefusedUrl
from grpo_engine.outbound.openenv import EnvironmentFailure, Observation, Session, open_session


class SessionLoop:
    """Runs sessions inside the block; when it ends, none of them is open."""

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="environments", daemon=True)
        self._thread.start()
        return self

    def submit(self, work: Coroutine[Any, Any, Observation]) -> "Future[Observation]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._finish(cancel=kind is not None), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def close_later(self, session: "EpisodeSession") -> None:
        """Close a session without waiting for it."""
        asyncio.run_coroutine_threadsafe(session.close(), self._loop)

    async def _finish(self, *, cancel: bool) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if cancel:
            for task in others:
                task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class EpisodeSession:
    """The session of one episode, from `start` to `close`; both run in the loop."""

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
