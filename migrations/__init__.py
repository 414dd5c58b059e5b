"""The database's schema, step by step (Alembic). `service.migrate` runs it; env.py is Alembic's entry."""
