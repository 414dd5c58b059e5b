"""A client of OpenEnv servers (package `openenv` 0.10): its schema over HTTP, one session per WebSocket.

    session, observation = await open_session(url, {"seed": 7}, timeout_seconds=30)
    observation = await session.step({"message": "…"})

Each request has exactly one answer. Anything else is a protocol error, because messages carry no number.
"""

import asyncio
import json
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self, cast

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, WebSocketException

from grpo_engine.contract.records import is_reward, refused_reward, storable
from grpo_engine.outbound.addresses import RefusedUrl
from grpo_engine.outbound.web import NoAnswer, get
from grpo_engine.outbound.websocket import connect

MAX_MESSAGE_BYTES = 2**20
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 2.0
SHOWN_CHARACTERS = 300
MESSAGE_TOO_BIG = 1009
"""WebSocket's code of a connection that was closed because of a message's size."""


class EnvironmentFailure(Exception):
    """The session failed, so its episode has no result."""


class TemporaryFailure(EnvironmentFailure):
    """The server is full or cannot be reached at present."""


class RefusedAction(Exception):
    """A turn is no action of its environment, for the reason in the message; the session continues."""


@dataclass(frozen=True, slots=True)
class Observation:
    text: str
    """The only field if it is a string, otherwise all fields as JSON; metadata is left out."""
    reward: float | None
    done: bool


def action_schema(url: str, *, timeout_seconds: float) -> dict[str, Any]:
    """JSON schema of the actions. Raises EnvironmentFailure, RefusedUrl."""
    schema = _get(url, "schema", timeout_seconds).get("action")
    if not isinstance(schema, dict):
        raise EnvironmentFailure("/schema has no schema of actions: is it an OpenEnv server?")
    return schema


def check_health(url: str, *, timeout_seconds: float) -> None:
    """Raises EnvironmentFailure unless the server says that it is healthy; RefusedUrl."""
    status = _get(url, "health", timeout_seconds).get("status")
    if status != "healthy":
        raise EnvironmentFailure(f"/health answers {_shown(status)}, not healthy")


def _get(url: str, path: str, timeout_seconds: float) -> dict[str, Any]:
    try:
        answer = get(_below(url, path), timeout_seconds=timeout_seconds)
    except NoAnswer as error:
        raise TemporaryFailure(str(error)) from None
    if answer.status != 200:
        raise EnvironmentFailure(f"/{path} answers with status {answer.status}")
    return _object(answer.body)


async def open_session(
    url: str, arguments: Mapping[str, Any], *, timeout_seconds: float
) -> tuple["Session", Observation]:
    """A session after its `reset`, and the first observation.

    If the server is full or unreachable, it is tried again until `timeout_seconds` have passed.
    Raises EnvironmentFailure, RefusedUrl.
    """
    end, pause = time.monotonic() + timeout_seconds, FIRST_PAUSE_SECONDS
    while True:
        try:
            return await _reset_session(url, arguments, timeout_seconds)
        except TemporaryFailure:
            pause = min(LONGEST_PAUSE_SECONDS, 2 * pause)
            wait = pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, no secret
            if time.monotonic() + wait >= end:
                raise
        await asyncio.sleep(wait)


async def _reset_session(
    url: str, arguments: Mapping[str, Any], timeout_seconds: float
) -> tuple["Session", Observation]:
    session = await Session.open(url, timeout_seconds)
    try:
        return session, await session.reset(arguments)
    except BaseException:
        await session.close()
        raise


class Session:
    def __init__(self, connection: ClientConnection, timeout_seconds: float) -> None:
        self._connection = connection
        self._timeout_seconds = timeout_seconds

    @classmethod
    async def open(cls, url: str, timeout_seconds: float) -> Self:
        """Raises TemporaryFailure if there is no connection, RefusedUrl."""
        try:
            connection = await connect(
                _below(url, "ws"), timeout_seconds=timeout_seconds, max_bytes=MAX_MESSAGE_BYTES
            )
        except RefusedUrl:
            raise
        except TimeoutError:
            raise TemporaryFailure(f"no connection within {timeout_seconds:.3g} s") from None
        except (OSError, UnicodeError, WebSocketException) as error:
            raise TemporaryFailure(f"no connection: {_shown(str(error))}") from None
        except ValueError as error:
            raise EnvironmentFailure(f"no connection: {_shown(str(error))}") from None
        return cls(connection, timeout_seconds)

    async def reset(self, arguments: Mapping[str, Any]) -> Observation:
        """Start an episode. Raises EnvironmentFailure; TemporaryFailure if the server has no free
        session or closes the connection."""
        return await self._exchange("reset", arguments)

    async def step(self, action: Mapping[str, Any]) -> Observation:
        """Act. Raises EnvironmentFailure; RefusedAction if the action does not fit the server's schema."""
        return await self._exchange("step", action)

    async def close(self) -> None:
        """End the session; whatever fails, the connection is gone."""
        try:
            with suppress(ConnectionClosed, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._connection.send('{"type": "close"}')
            await self._connection.close()
        finally:
            self._connection.transport.abort()  # closing may be cancelled

    async def _exchange(self, kind: str, data: Mapping[str, Any]) -> Observation:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                early = await self._unexpected()
                if early is None:
                    with suppress(ConnectionClosed):  # a full server has answered and closed
                        await self._connection.send(json.dumps({"type": kind, "data": dict(data)}))
                    return _observation(await self._connection.recv(), kind)
        except TimeoutError:
            raise EnvironmentFailure(f"no answer to {kind} within {self._timeout_seconds:.3g} s") from None
        except ConnectionClosed as error:
            raise _closed(error, kind) from None
        _observation(early, kind)  # raises the error that the server sent
        raise EnvironmentFailure(f"protocol error: the server sent a message before {kind} was requested")

    async def _unexpected(self) -> str | bytes | None:
        """A message that is already there."""
        with suppress(TimeoutError, ConnectionClosed):
            async with asyncio.timeout(0):
                return await self._connection.recv()
        return None


def _closed(error: ConnectionClosed, kind: str) -> EnvironmentFailure:
    own = error.sent.code if isinstance(error, ConnectionClosedError) and error.sent else None
    if own == MESSAGE_TOO_BIG:
        return EnvironmentFailure(f"{kind}: the observation has more than {MAX_MESSAGE_BYTES} bytes")
    failure = TemporaryFailure if kind == "reset" else EnvironmentFailure  # a session cannot be continued
    return failure(f"{kind}: the server closed the connection")


def _observation(message: str | bytes, kind: str) -> Observation:
    """Raises EnvironmentFailure, RefusedAction."""
    answer = _object(message)
    data = answer.get("data")
    if not isinstance(data, dict):
        raise EnvironmentFailure(f"protocol error: the answer to {kind} has no data")
    if answer.get("type") == "error":
        raise _refusal(data, kind)
    if answer.get("type") != "observation":
        shown = _shown(answer.get("type"))
        raise EnvironmentFailure(f"protocol error: {kind} was answered with {shown}, not an observation")
    fields, reward, done = data.get("observation"), data.get("reward"), data.get("done", False)
    if not isinstance(fields, dict) or not isinstance(done, bool):
        raise EnvironmentFailure(f"protocol error: the answer to {kind} is not an observation")
    return Observation(_text(fields), None if reward is None else _finite(reward), done)


def _finite(reward: Any) -> float:
    if isinstance(reward, int | float):
        with suppress(OverflowError):
            if is_reward(number := float(reward)):
                return number
    raise EnvironmentFailure(refused_reward(reward))


def _refusal(data: Mapping[str, Any], kind: str) -> Exception:
    code, message = str(data.get("code")), _shown(data.get("message"))
    if code == "CAPACITY_REACHED":
        return TemporaryFailure(f"the server has no free session: {message}")
    if code == "VALIDATION_ERROR" and kind == "step":
        return RefusedAction(_field_errors(data.get("errors")) or message)
    return EnvironmentFailure(f"{kind}: {code}: {message}")


def _field_errors(errors: Any) -> str:
    """pydantic's errors as one line."""
    found = [each for each in errors if isinstance(each, dict)] if isinstance(errors, list) else []
    places = [each.get("loc") for each in found[:4]]
    shown = [".".join(map(str, place)) if isinstance(place, list) else "" for place in places]
    return _shown("; ".join(f"{place}: {each.get('msg')}" for place, each in zip(shown, found, strict=False)))


def _text(fields: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in fields.items() if name != "metadata"}
    values = list(shown.values())
    only_text = len(values) == 1 and isinstance(values[0], str)
    return storable(values[0] if only_text else json.dumps(shown, ensure_ascii=False))


def _object(message: str | bytes) -> dict[str, Any]:
    try:
        found = json.loads(message)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        text = message if isinstance(message, str) else message.decode("utf-8", "replace")
        shown = json.dumps(_shown(text), ensure_ascii=False)
        raise EnvironmentFailure(f"protocol error: the answer is not a JSON object: {shown}")
    return cast(dict[str, Any], found)


def _below(url: str, path: str) -> str:
    return f"{url.rstrip('/')}/{path}"


def _shown(value: Any) -> str:
    return " ".join(storable(str(value)).split())[:SHOWN_CHARACTERS]
