"""Paths in the settings: characters that have a meaning in URLs."""

from pathlib import Path

import pytest

from service.platform.db import connect
from tests.conftest import settings_for


@pytest.mark.parametrize("name", ["100% größe 🚀 %20", "who?a=b#c;d&e", 'it\'s "mine"', "a+b@c:d"])
def test_the_database_is_inside_a_home_of_any_name(tmp_path: Path, name: str) -> None:
    database = connect(settings_for(tmp_path / name))
    with database.reading() as session:
        assert session.connection().exec_driver_sql("SELECT 1").scalar_one() == 1
    database.engine.dispose()
    assert (tmp_path / name / "grpo.db").is_file()
