"""Errors of the deployment's settings, as the commands show them."""

import pytest

from service.cli.operate.settings import settings_here
from service.cli.terminal.errors import CommandError


def _unknown(_uid: int) -> None:
    raise KeyError("uid not found")


def test_a_user_without_a_home_is_asked_to_name_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as a number without a name."""
    for variable in ("HOME", "GRPO_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pwd.getpwuid", _unknown)
    with pytest.raises(CommandError) as error:
        settings_here()
    assert error.value.line().startswith("this user has no home directory [param=GRPO_HOME] Hint: set it")
