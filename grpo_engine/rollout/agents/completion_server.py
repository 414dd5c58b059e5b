"""The HTTP server from which agents request completions. The key of a request names its rollout.

Boundary: threads and requests; `conversations.py` turns a request into tokens and back.
"""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable
from concurrent.futures import Future

from grpo_engine.chat.http_app import create_app
from grpo_engine.chat.http_server import MAX_CONNECTIONS, HttpServer
from grpo_engine.chat.protocol import Answer, Generate, Refused

OVERRIDDEN = frozenset(
    {"temperature", "top_p", "seed", "frequency_penalty", "presence_penalty", "logit_bias", "top_k", "min_p"}
    | {"reasoning_effort", "verbosity"}
)
"""Options of a request that are not read, because the job's sampling is trained on."""
REQUESTS_PER_TURN = 4
"""Different requests of a rollout that are kept for repetitions, per allowed turn; refused ones count."""
PARALLEL_REQUESTS = 16
"""Requests that are answered at the same time, per rollout; further ones wait."""
Submit = Callable[[Generate], "Future[Answer]"]


class RolloutBackend:
    """Answers the requests of one rollout; the same request gets the same answer."""

    def __init__(self, submit: Submit, max_turns: int) -> None:
        self._submit = submit
        self._turns_left = max_turns
        self._most_kept = REQUESTS_PER_TURN * max_turns
        self._answers: dict[bytes, asyncio.Task[Answer | Refused]] = {}

    async def answer(self, request: Generate) -> AsyncGenerator[Answer]:
        """The whole answer as one part. Raises Refused. A client that repeats its request gets the same."""
        text = request.model_dump_json(exclude={"seed"}).encode()
        digest = hashlib.blake2b(text, digest_size=16).digest()
        if digest not in self._answers and len(self._answers) < self._most_kept:
            self._answers[digest] = asyncio.create_task(self._sample(request))
        kept = self._answers.get(digest)
        found = _too_many() if kept is None else await asyncio.shield(kept)
        if isinstance(found, Refused):
            raise found
        yield found

    async def _sample(self, request: Generate) -> Answer | Refused:
        if self._turns_left < 1:
            return _too_many()
        self._turns_left -= 1
        try:
            return await asyncio.wrap_future(self._submit(request))
        except Refused as error:
            self._turns_left += 1
            return error


def _too_many() -> Refused:
    return Refused("too_many_turns", "The rollout has had max_turns completions.")


class CompletionServer:
    """Listens until `close`; `url` is what agents get as their base URL."""

    def __init__(self, host: str, ports: Iterable[int], num_rollouts: int) -> None:
        """`ports`: the first free one is used. Raises OSError."""
        max_open = PARALLEL_REQUESTS * num_rollouts
        self._backends: dict[str, RolloutBackend] = {}
        app = create_app(self._backends.get, max_open=max_open, ignored=OVERRIDDEN)
        max_connections = max(MAX_CONNECTIONS, 2 * max_open)
        self._server = HttpServer(app, host, ports=ports, max_connections=max_connections)
        self.url = f"{self._server.url}/v1"

    def close(self) -> None:
        self._server.close()

    def admit(self, submit: Submit, max_turns: int) -> str:
        """A key for a new rollout. `submit`: called in the server's thread."""
        key = secrets.token_urlsafe(24)
        self._backends[key] = RolloutBackend(submit, max_turns)
        return key

    def revoke(self, key: str) -> None:
        """Refuse further requests with this key."""
        self._backends.pop(key, None)
