"""Notifies a tenant's servers when a job ends: endpoints, outbox, deliveries."""
