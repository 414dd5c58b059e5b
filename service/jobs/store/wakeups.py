"""Wake-ups: messages that say "look at the queue of this pool", and nothing more.

They may be lost, late or doubled without harm, because the job's row is the truth. Sending never raises and
never takes long (`doorbell.py`); what was not sent, the sweeper sends later.
Boundary: without a broker (embedded) nothing of Celery and Redis is loaded, a sixth of a process's start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from service.settings import Settings

if TYPE_CHECKING:
    from service.jobs.store.doorbell import Doorbell

CHECK_SECONDS = 1.0


class Wakeups:
    """Sends wake-ups; without a broker it sends nothing, and workers poll."""

    def __init__(self, settings: Settings) -> None:
        self._doorbell: Doorbell | None = None
        if settings.broker_url is not None:
            from service.jobs.store.doorbell import Doorbell

            self._doorbell = Doorbell(settings.broker_url.get_secret_value())

    def send(self, pool: str) -> bool:
        """Wake one idle worker of the pool. False: nobody was woken; the sweeper will try again."""
        return self._doorbell is not None and self._doorbell.ring(pool)

    def close(self) -> None:
        """Give the broker's connections back."""
        if self._doorbell is not None:
            self._doorbell.close()


def broker_check(settings: Settings) -> str:
    """`ok`, `none` where none is set, else what is wrong. What is no Redis does not evict."""
    if settings.broker_url is None:
        return "none"
    url = settings.broker_url.get_secret_value()
    if not url.startswith(("redis://", "rediss://")):
        return "ok"
    from redis import Redis
    from redis.exceptions import RedisError

    client = Redis.from_url(url, socket_timeout=CHECK_SECONDS, socket_connect_timeout=CHECK_SECONDS)
    try:
        memory = cast("dict[str, str]", client.info("memory"))
    except RedisError:
        return "no answer"
    finally:
        client.close()
    policy = memory.get("maxmemory_policy", "noeviction")
    return "ok" if policy == "noeviction" else f"evicts messages: maxmemory-policy is {policy}"


def refuse_eviction(settings: Settings) -> None:
    """Production does not start on a Redis that throws messages away; one that is away comes back.

    Raises RuntimeError.
    """
    found = broker_check(settings)
    if settings.mode == "production" and found.startswith("evicts"):
        raise RuntimeError(f"the broker {found}; set it to noeviction")
