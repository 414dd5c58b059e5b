"""The doorbell: a Celery message that says "look at the queue of this pool", and nothing more.

Messages may be lost, late or doubled without harm, because the job's row is the truth. Sending never
raises and never takes longer than the short timeouts below; what was not sent, the sweeper sends later.
"""

from __future__ import annotations

import logging
from typing import Any, cast

from celery import Celery
from kombu import Producer
from kombu.exceptions import ChannelError, KombuError, OperationalError
from redis import Redis
from redis.exceptions import RedisError

from service.settings import Settings

logger = logging.getLogger(__name__)

TASK = "wake"
SEND_SECONDS = 1.0
MAX_WAITING = 100
"""With so many unread wake-ups in a queue nobody listens, or all will come anyway."""
SOCKET = {"socket_timeout": 10, "socket_connect_timeout": 5, "socket_keepalive": True}
IMPATIENT = {"max_retries": 0, "interval_start": 0, "connect_retries_timeout": SEND_SECONDS}


def queue_name(pool: str) -> str:
    """The broker's queue of a pool: a worker listens to its own only."""
    return f"wake.{pool}"


def celery_settings(broker_url: str) -> dict[str, Any]:
    """What both ends of the doorbell share: JSON, early ack, no results, no endless waits."""
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
    """Sends wake-ups; without a broker (embedded) it sends nothing, and workers poll."""

    def __init__(self, settings: Settings) -> None:
        self._celery: Celery | None = None
        if settings.broker_url is not None:
            self._celery = Celery("grpo-wakeups", set_as_current=False)
            self._celery.conf.update(celery_settings(settings.broker_url.get_secret_value()))
            quick = {"socket_timeout": SEND_SECONDS, "socket_connect_timeout": SEND_SECONDS}
            self._celery.conf.broker_transport_options = SOCKET | quick | IMPATIENT
            self._celery.conf.broker_pool_acquire_timeout = SEND_SECONDS

    def send(self, pool: str) -> bool:
        """Wake one idle worker of the pool. False: nobody was woken; the sweeper will try again."""
        if self._celery is None:
            return False
        queue = queue_name(pool)
        try:
            with self._celery.producer_pool.acquire(block=True, timeout=SEND_SECONDS) as producer:
                if _num_waiting(producer, queue) < MAX_WAITING:
                    options = {"queue": queue, "producer": producer, "retry": False}
                    self._celery.send_task(TASK, args=[pool], ignore_result=True, **options)
        except (OperationalError, KombuError, RedisError, OSError) as error:
            logger.warning("the wake-up of pool %s was not sent: %s", pool, type(error).__name__)
            return False
        return True

    def close(self) -> None:
        """Give the broker's connections back."""
        if self._celery is not None:
            self._celery.close()


def _num_waiting(producer: Producer, queue: str) -> int:
    try:
        return int(producer.channel.queue_declare(queue, passive=True).message_count)
    except ChannelError:
        return 0  # nobody has rung there yet


def broker_check(settings: Settings) -> str:
    """`ok`, `none` where none is set, else what is wrong. What is no Redis does not evict."""
    if settings.broker_url is None:
        return "none"
    url = settings.broker_url.get_secret_value()
    if not url.startswith(("redis://", "rediss://")):
        return "ok"
    client = Redis.from_url(url, socket_timeout=SEND_SECONDS, socket_connect_timeout=SEND_SECONDS)
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
