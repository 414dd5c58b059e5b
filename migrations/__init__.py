"""Migrations of the database's schema (Alembic). `service.platform.migrate` runs them."""
