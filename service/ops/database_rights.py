"""Checks the rights that the API and the workers need on the tables; a user may lack some, for example
after a restore."""

from sqlalchemy import text
from sqlalchemy.orm import Session

from service.platform.db import is_postgresql
from service.platform.tables.core import Base

_MISSING = text("""
    SELECT needed || ' on ' || name
    FROM unnest(CAST(:tables AS text[])) AS name,
        unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) AS needed
    WHERE NOT has_table_privilege(to_regclass(name), needed)
        AND (name <> 'audit' OR needed IN ('SELECT', 'INSERT'))
    UNION ALL
    SELECT 'USAGE on ' || name
    FROM (SELECT pg_get_serial_sequence('audit', 'id') AS name) AS found
    WHERE NOT has_sequence_privilege(name, 'USAGE')
    ORDER BY 1
""")
"""Rows of `audit` are only added and read; the ids come from the only sequence."""


def missing_rights(session: Session) -> list[str]:
    """Each right that the database's user lacks, such as "INSERT on jobs"."""
    if not is_postgresql(session):
        return []
    return list(session.scalars(_MISSING, {"tables": list(Base.metadata.tables)}))
