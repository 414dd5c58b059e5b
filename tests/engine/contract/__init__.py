"""Plain data between engine, worker and service."""
