"""The broker's end of a wake-up: Celery over Redis. Loaded only where a broker is set.

Boundary: one Celery application that sends; who is woken and when, `wakeups.py` and its callers know.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery
from kombu import Producer
from kombu.exceptions import ChannelError, KombuError, OperationalError
from redis.exceptions import RedisError

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


class Doorbell:
    """Sends wake-ups through the broker."""

    def __init__(self, broker_url: str) -> None:
        self._celery = Celery("grpo-wakeups", set_as_current=False)
        self._celery.conf.update(celery_settings(broker_url))
        quick = {"socket_timeout": SEND_SECONDS, "socket_connect_timeout": SEND_SECONDS}
        self._celery.conf.broker_transport_options = SOCKET | quick | IMPATIENT
        self._celery.conf.broker_pool_acquire_timeout = SEND_SECONDS

    def ring(self, pool: str) -> bool:
        """Whether it was sent; also where so many wait already that one more says nothing."""
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
        self._celery.close()


def _num_waiting(producer: Producer, queue: str) -> int:
    try:
        return int(producer.channel.queue_declare(queue, passive=True).message_count)
    except ChannelError:
        return 0  # nobody has rung there yet
