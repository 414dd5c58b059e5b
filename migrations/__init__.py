"""The database's schema, step by step (Alembic). Run by `service.platform.migrate`."""
