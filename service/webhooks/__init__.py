"""Notifications of a tenant's own servers when a job ends: endpoints, outbox, deliveries."""
