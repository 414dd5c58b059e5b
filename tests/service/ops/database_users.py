"""A PostgreSQL user that has only some rights on the tables of a database."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from service.platform.db import Database
from service.settings import Settings
from tests.conftest import settings_for


@contextmanager
def limited_user(database: Database, settings: Settings, *grants: str) -> Iterator[Settings]:
    """The settings with a new user that has `grants`, such as "SELECT ON ALL TABLES IN SCHEMA public"."""
    name = f"limited_{uuid.uuid4().hex}"
    with database.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN")
        for grant in grants:
            connection.exec_driver_sql(f"GRANT {grant} TO {name}")
    url = database.engine.url.set(drivername="postgresql", username=name)
    try:
        yield settings_for(settings.home, url.render_as_string(hide_password=False))
    finally:
        with database.engine.begin() as connection:
            connection.exec_driver_sql(f"DROP OWNED BY {name}")
            connection.exec_driver_sql(f"DROP ROLE {name}")
