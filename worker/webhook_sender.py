"""Sends what is due to webhooks, beside the sweeper and never in its way. Any number of processes may.

A few threads claim, send and record. One tenant's slow receivers hold some of them, never all.
Boundary: threads and their end; what follows from an attempt is `service/webhooks/outbox.py`'s.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog
from sqlalchemy.exc import SQLAlchemyError

from grpo_engine.outbound.addresses import Outside
from grpo_engine.process.fault_points import fault_point
from service.platform.db import Database
from service.settings import Settings
from service.webhooks import outbox
from service.webhooks.sending import SEND_SECONDS, send
from worker.attempt.attempt import Flag

logger = structlog.get_logger()

THREADS = 4
MAX_OF_TENANT = 2
"""Threads that send for one tenant at once."""


@dataclass
class Sender:
    """What this process's threads share."""

    database: Database
    settings: Settings
    _sending: Counter[str] = field(default_factory=Counter)
    """By tenant."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send_until(self, stopping: Flag) -> None:
        """One thread's work: whatever is due, then a look every `sweep_seconds`."""
        while not stopping.is_set():
            try:
                found = self.send_one()
            except SQLAlchemyError as error:
                logger.warning("no webhook sent", error=type(error).__name__)
                found = False
            except Exception:
                # a mistake of ours, which must not end the sending of all others; its claim ends by itself
                logger.exception("a webhook could not be sent")
                found = False
            if not found:
                stopping.wait(self.settings.sweep_seconds)

    def send_one(self) -> bool:
        """One attempt at one delivery. False: nothing is due. Raises SQLAlchemyError."""
        claimed = self._claim()
        if claimed is None:
            return False
        try:
            self._deliver(claimed)
        finally:
            self._let_go(claimed.delivery.tenant)
        return True

    def _claim(self) -> outbox.Claimed | None:
        with self._lock:  # one look at a time, so that the next one knows what this one took
            full = sorted(tenant for tenant, num in self._sending.items() if num >= MAX_OF_TENANT)
            with self.database.statement() as session:
                claimed = outbox.claim_due(session, full)
            if claimed is not None:
                self._sending[claimed.delivery.tenant] += 1
        return claimed

    def _let_go(self, tenant: str) -> None:
        with self._lock:
            self._sending[tenant] -= 1
            self._sending += Counter()  # forgets those at zero

    def _deliver(self, claimed: outbox.Claimed) -> None:
        delivery = claimed.delivery
        with self.database.reading() as session:
            endpoint = outbox.receiver(session, delivery)
        if endpoint is None:
            with self.database.transaction() as session:
                outbox.give_up(session, delivery)
            return
        attempt = send(endpoint, claimed, Outside.listed(self.settings.allowed_hosts))
        fault_point("webhook.sent")
        with self.database.transaction() as session:
            outbox.record(session, delivery, endpoint, attempt, self.settings.webhook_backoff_seconds)
        told = {"status": attempt.status_code, "seconds": attempt.seconds}
        logger.info("webhook sent", delivery=delivery.id, tenant=delivery.tenant, **told)


@contextmanager
def sending(stopping: Flag, database: Database, settings: Settings) -> Iterator[None]:
    """Threads that send until `stopping`; at the end those that are about to send may finish."""
    sender = Sender(database, settings)
    threads = [
        threading.Thread(target=sender.send_until, args=(stopping,), name=f"webhooks-{number}", daemon=True)
        for number in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(timeout=SEND_SECONDS)
