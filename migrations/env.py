"""Alembic's entry: compares and upgrades the deployment's database (`GRPO_DATABASE_URL`).

`platform/migrate.py` hands a connection over in `config.attributes`; the `alembic` command opens its own.
"""

from __future__ import annotations

from typing import Any

from alembic import context
from sqlalchemy import Column, Connection

from service.platform.db import make_engine
from service.platform.tables import serving, sinks, webhooks  # noqa: F401 - their tables are Base's too
from service.platform.tables.core import Base
from service.settings import Settings

SORTED_INDEXES = {
    index.name
    for table in Base.metadata.tables.values()
    for index in table.indexes
    if not all(isinstance(expression, Column) for expression in index.expressions)
}


def run(connection: Connection) -> None:
    """Run Alembic's command in the connection's open transaction: all of it or nothing."""
    is_sqlite = connection.dialect.name == "sqlite"

    def is_comparable(_object: Any, name: str | None, kind: str, _reflected: bool, _other: Any) -> bool:
        # SQLAlchemy reflects no sort order from SQLite, so such an index always looks changed there.
        return not (is_sqlite and kind == "index" and name in SORTED_INDEXES)

    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        render_as_batch=is_sqlite,
        transactional_ddl=True,
        include_object=is_comparable,
    )
    context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with make_engine(Settings()).begin() as connection:
        run(connection)
