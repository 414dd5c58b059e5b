"""Sends due webhook deliveries from a few threads beside the sweeper. Several processes may run.

A slow receiver occupies one thread, all of a tenant's receivers at most `MAX_OF_TENANT`.
Boundary: threads; the consequences of an attempt are in `service/webhooks/outbox.py`.
"""

import threading
from collections import Counter
from dataclasses import dataclass, field

import structlog

from grpo_engine.outbound.addresses import AllowedHosts
from grpo_engine.process.fault_points import fault_point
from service.ops.helper_heartbeats import WEBHOOKS, Heartbeat
from service.platform.db import Database
from service.platform.tables.webhooks import WebhookDelivery
from service.settings import Settings
from service.webhooks import outbox
from service.webhooks.sending import send
from worker.supervision import Flag, run_rounds

logger = structlog.get_logger()

THREADS = 4
MAX_OF_TENANT = 2
"""Maximum concurrent deliveries per tenant."""


@dataclass
class Sender:
    """State shared by the process's sending threads."""

    database: Database
    settings: Settings
    _sending: list[WebhookDelivery] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._heartbeat = Heartbeat(self.database, self.settings, WEBHOOKS)

    def send_until(self, stopping: Flag) -> None:
        """Send all due deliveries, then check every `sweep_seconds`. After an error, the claim expires."""
        run_rounds(stopping, self._heartbeat, self.send_one, self.settings.sweep_seconds)

    def send_one(self) -> bool:
        """Attempt one delivery. False: nothing is due. Raises SQLAlchemyError."""
        claimed = self._claim()
        if claimed is None:
            return False
        try:
            self._deliver(claimed)
        finally:
            with self._lock:
                self._sending.remove(claimed.delivery)
        return True

    def _claim(self) -> outbox.Claimed | None:
        with self._lock:  # so that each claim sees the deliveries of the others
            num_sending = Counter(each.tenant for each in self._sending)
            tenants = [tenant for tenant, num in num_sending.items() if num >= MAX_OF_TENANT]
            endpoints = [each.endpoint_id for each in self._sending]
            with self.database.transaction() as session:
                claimed = outbox.claim_due(session, tenants, endpoints, list(num_sending))
            if claimed is not None:
                self._sending.append(claimed.delivery)
        return claimed

    def _deliver(self, claimed: outbox.Claimed) -> None:
        delivery = claimed.delivery
        with self.database.reading() as session:
            endpoint = outbox.receiver(session, delivery)
        if endpoint is None:
            with self.database.transaction() as session:
                outbox.give_up(session, delivery)
            return
        attempt = send(endpoint, claimed, AllowedHosts.listed(self.settings.allowed_hosts))
        fault_point("webhook.sent")
        with self.database.transaction() as session:
            outbox.record(session, delivery, endpoint, attempt, self.settings.webhook_backoff_seconds)
        result = {"status": attempt.status_code, "seconds": attempt.seconds}
        logger.info("webhook sent", delivery=delivery.id, tenant=delivery.tenant, **result)
