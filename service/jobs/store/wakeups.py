"""Wake-ups: messages that make an idle worker of a pool read the queue.

They may be lost, late or duplicated without harm, because the job's row is the truth. Sending never raises
and takes little time; the sweeper resends lost ones.
Celery and Redis are imported only if there is a broker, because that takes a sixth of the service's start.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from service.settings import Settings

if TYPE_CHECKING:
    from celery import Celery
    from kombu import Producer

logger = logging.getLogger(__name__)

TASK = "wake"
CHECK_SECONDS = 1.0
SEND_SECONDS = 1.0
MAX_WAITING = 100
"""A queue with this many unread wake-ups gets no more: its workers are down, or will read the jobs anyway."""
SOCKET = {"socket_timeout": 10, "socket_connect_timeout": 5, "socket_keepalive": True}
NO_RETRIES = {"max_retries": 0, "interval_start": 0, "connect_retries_timeout": SEND_SECONDS}


def queue_name(pool: str) -> str:
    """The broker's queue for a pool; a worker consumes only its own pool's queue."""
    return f"wake.{pool}"


def celery_settings(broker_url: str) -> dict[str, Any]:
    """Celery's settings for sender and worker: JSON, early acknowledgement, no results, no endless waits."""
    return {
        "broker_url": broker_url,
        "task_ignore_result": True,
        "task_serializer": "json",
        "accept_content": ["json"],
        "task_acks_late": False,
        "task_reject_on_worker_lost": False,
        "task_create_missing_queues": True,
        "broker_connection_max_retries": None,
        "broker_connection_retry_on_startup": True,
        "broker_transport_options": SOCKET | {"health_check_interval": 25},
    }


class Wakeups:
    """Sends wake-ups; without a broker it sends nothing, and workers poll."""

    def __init__(self, settings: Settings) -> None:
        url = settings.broker_url
        self._celery = None if url is None else _sending_celery(url.get_secret_value())

    def send(self, pool: str) -> bool:
        """Wake one idle worker of the pool. False: nothing was sent; the sweeper will try again."""
        if self._celery is None:
            return False
        from kombu.exceptions import KombuError
        from redis.exceptions import RedisError

        queue = queue_name(pool)
        try:
            with self._celery.producer_pool.acquire(block=True, timeout=SEND_SECONDS) as producer:
                if _num_waiting(producer, queue) < MAX_WAITING:
                    options = {"queue": queue, "producer": producer, "retry": False}
                    self._celery.send_task(TASK, args=[pool], ignore_result=True, **options)
        except (KombuError, RedisError, OSError) as error:
            logger.warning("the wake-up of pool %s was not sent: %s", pool, type(error).__name__)
            return False
        return True

    def close(self) -> None:
        """Close the connections to the broker."""
        if self._celery is not None:
            self._celery.close()


def _sending_celery(broker_url: str) -> Celery:
    from celery import Celery

    app = Celery("grpo-wakeups", set_as_current=False)
    app.conf.update(celery_settings(broker_url))
    quick = {"socket_timeout": SEND_SECONDS, "socket_connect_timeout": SEND_SECONDS}
    app.conf.broker_transport_options = SOCKET | quick | NO_RETRIES
    app.conf.broker_pool_acquire_timeout = SEND_SECONDS
    return app


def _num_waiting(producer: Producer, queue: str) -> int:
    from kombu.exceptions import ChannelError

    try:
        return int(producer.channel.queue_declare(queue, passive=True).message_count)
    except ChannelError:
        return 0  # the first message creates the queue


BROKER_REFUSES = "refuses the user, password or database number"


def broker_check(settings: Settings) -> str:
    """`ok`, `none` if no broker is set, otherwise the problem. A socket and a sentinel are not checked."""
    if settings.broker_url is None:
        return "none"
    url = settings.broker_url.get_secret_value()
    if not url.startswith(("redis://", "rediss://")):
        return "ok"
    from redis import Redis
    from redis.exceptions import AuthenticationError, RedisError, ResponseError

    client = Redis.from_url(url, socket_timeout=CHECK_SECONDS, socket_connect_timeout=CHECK_SECONDS)
    try:
        found = cast("dict[str, Any]", client.info())
    except (AuthenticationError, ResponseError):
        return BROKER_REFUSES
    except RedisError:
        return "no answer"
    finally:
        client.close()
    policy = found.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        return f"evicts messages: maxmemory-policy is {policy}"
    if found.get("role") == "slave":
        return "is read-only: it is a replica"
    is_full = 0 < found.get("maxmemory", 0) <= found.get("used_memory", 0)
    return "is full: maxmemory is reached" if is_full else "ok"


def refuse_eviction(settings: Settings) -> None:
    """Raise RuntimeError in production if Redis evicts messages. An unreachable Redis is accepted."""
    found = broker_check(settings)
    if settings.mode == "production" and found.startswith("evicts"):
        raise RuntimeError(f"the broker {found}; set it to noeviction")
