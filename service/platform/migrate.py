"""The schema's version: upgrades to the newest, reads that of a database.

Alembic runs from Python, so that it works from any folder; the steps are in `migrations/`.
"""

from functools import cache
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from service.platform.db import is_postgresql, make_engine
from service.settings import Settings

MIGRATIONS = Path(__file__).parents[2] / "migrations"
ADVISORY_LOCK = 0x67727066
"""PostgreSQL lock under which one process at a time migrates."""


def alembic_config(connection: Connection | None = None) -> Config:
    """Alembic's configuration without a file. Commands run on `connection`, which the caller commits."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def upgrade(settings: Settings) -> None:
    """Bring the deployment's database to the newest schema; any number of processes may call it at once."""
    engine = make_engine(settings)
    try:
        with engine.begin() as connection:
            if is_postgresql(connection):
                connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": ADVISORY_LOCK})
            command.upgrade(alembic_config(connection), "head")
    finally:
        engine.dispose()


def current_revision(engine: Engine) -> str | None:
    """The schema version of the database; None if it was never migrated."""
    with engine.execution_options(grpo_read_only=True).connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


@cache
def head_revision() -> str:
    """The schema version that this code needs."""
    revision = ScriptDirectory.from_config(alembic_config()).get_current_head()
    if revision is None:
        raise RuntimeError("migrations/versions is empty")
    return revision


def is_known(revision: str | None) -> bool:
    """Whether this code can upgrade a database with this schema version."""
    known = ScriptDirectory.from_config(alembic_config()).walk_revisions()
    return revision is None or revision in {script.revision for script in known}
