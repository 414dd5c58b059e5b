"""Statements by PostgreSQL's driver: SQLAlchemy's values, SQLAlchemy's errors, and no transaction."""

from __future__ import annotations

import pytest
from pydantic import SecretStr
from sqlalchemy import (
    Executable,
    Integer,
    String,
    bindparam,
    cast,
    column,
    func,
    insert,
    literal,
    select,
    table,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.exc import DBAPIError, OperationalError

from service.platform.db import Database, connect
from service.settings import Settings
from tests.servers import free_port

pytestmark = pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)

ECHO = select(bindparam("data", type_=JSONB), bindparam("words", type_=ARRAY(String)), literal(7))
NOTHING = select(literal(1)).where(bindparam("never"))
PROCESS = select(func.pg_backend_pid())
END_ONESELF = select(func.pg_terminate_backend(func.pg_backend_pid()))
WRONG: dict[str, Executable] = {
    "not a number": select(cast(bindparam("given", type_=String), Integer)),
    "no such table": select(bindparam("given", type_=String)).select_from(table("nowhere")),
    "a row without its columns": insert(table("job_events", column("job_id"))).values(
        job_id=bindparam("given", type_=String)
    ),
}


def test_values_go_and_come_as_with_sqlalchemy(database: Database) -> None:
    for data in ({"state": "running", "ü": [1, None, 0.5]}, {}, None):
        given = {"data": data, "words": ["", "a,b"], "unused": 1}
        with database.direct() as connection, database.reading() as session:
            direct = connection.execute(ECHO, given).one_or_none()
            assert tuple(direct) == tuple(session.execute(ECHO, given).one()) == (data, ["", "a,b"], 7)


def test_where_there_is_no_row_there_is_none(database: Database) -> None:
    with database.direct() as connection:
        assert connection.execute(NOTHING, {"never": False}).one_or_none() is None
        assert connection.scalar(NOTHING, {"never": False}) is None
        assert connection.scalar(NOTHING, {"never": True}) == 1


@pytest.mark.parametrize("statement", WRONG.values(), ids=WRONG)
def test_an_error_is_told_as_sqlalchemy_tells_it_and_harms_no_later_statement(
    database: Database, statement: Executable
) -> None:
    given = {"given": "words"}
    with pytest.raises(DBAPIError) as usual, database.reading() as session:
        session.execute(statement, given)
    with database.direct() as connection:
        with pytest.raises(DBAPIError) as found:
            connection.execute(statement, given)
        assert (type(found.value), str(found.value)) == (type(usual.value), str(usual.value))
        assert connection.scalar(NOTHING, {"never": True}) == 1


def test_a_missing_value_is_an_error_of_the_statement(database: Database) -> None:
    with database.direct() as connection, pytest.raises(DBAPIError, match="query parameter missing: never"):
        connection.execute(NOTHING, {})


def test_a_lost_connection_is_not_used_again(database: Database) -> None:
    with database.direct() as connection:
        lost = connection.scalar(PROCESS, {})
        with pytest.raises(OperationalError) as error:
            connection.execute(END_ONESELF, {})
    assert error.value.connection_invalidated
    with database.direct() as connection:
        assert connection.scalar(PROCESS, {}) != lost


def test_a_database_that_is_away_is_an_outage(settings: Settings) -> None:
    nowhere = SecretStr(f"postgresql://nobody@127.0.0.1:{free_port()}/none")
    away = connect(settings.model_copy(update={"database_url": nowhere}))
    with pytest.raises(OperationalError, match="onnection refused"), away.direct() as connection:
        connection.execute(PROCESS, {})
