"""Alembic's entry point, which compares and upgrades the deployment's database (`GRPO_DATABASE_URL`).

`platform/migrate.py` passes a connection in `config.attributes`; the `alembic` command opens its own.
"""

from typing import Any

from alembic import context
from sqlalchemy import Column, Connection

from service.platform.db import make_engine
from service.platform.tables import core, logs, serving, sinks, webhooks, workers
from service.settings import Settings

METADATA = core.Base.metadata
TABLE_MODULES = (core, logs, serving, sinks, webhooks, workers)
"""Importing a module adds its tables to METADATA."""
SORTED_INDEXES = {
    index.name
    for table in METADATA.tables.values()
    for index in table.indexes
    if not all(isinstance(expression, Column) for expression in index.expressions)
}


def run(connection: Connection) -> None:
    """Run Alembic's command in the connection's open transaction, so that all of it or nothing is applied."""
    is_sqlite = connection.dialect.name == "sqlite"

    def is_comparable(_object: Any, name: str | None, kind: str, _reflected: bool, _other: Any) -> bool:
        # SQLAlchemy does not read the sort order of an index in SQLite, so such an index always looks
        # changed.
        return not (is_sqlite and kind == "index" and name in SORTED_INDEXES)

    context.configure(
        connection=connection,
        target_metadata=METADATA,
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
