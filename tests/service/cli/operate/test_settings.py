"""Errors of the deployment's settings, as the commands show them."""

from pathlib import Path

import pytest

from service.cli.operate.settings import settings_here
from service.cli.terminal.errors import CommandError
from tests.service.embedded import call_grpo, environment


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


@pytest.mark.parametrize("command", [("migrate",), ("keys", "list")])
def test_a_home_that_cannot_be_created_is_an_error_that_names_its_variable(command: tuple[str, ...]) -> None:
    done = call_grpo(*command, environment=environment(Path("/proc/home")))
    assert (done.returncode, done.stdout) == (1, "")
    expected = "Error: cannot write to /proc/home: No such file or directory [param=GRPO_HOME]"
    assert done.stderr.startswith(f"{expected} Hint: use a folder that this user can write to")


def test_the_doctor_s_finding_about_a_home_that_cannot_be_created_names_its_variable() -> None:
    done = call_grpo("doctor", environment=environment(Path("/proc/home")))
    packages, settings, advice = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (1, "")
    assert packages.startswith("ok       packages")
    reason = "cannot write to /proc/home: No such file or directory"
    assert settings.split(maxsplit=2) == ["failure", "settings", reason]
    assert advice.split(maxsplit=1)[1].startswith("Correct GRPO_HOME;")


def test_a_full_disk_is_reported_at_once_and_after_a_variable_without_effect(tmp_path: Path) -> None:
    given = {"GRPO_MIN_FREE_DISK_BYTES": str(1 << 60), "GRPO_MAX_CHAT": "3"}
    done = call_grpo("up", "--port", "0", environment=environment(tmp_path / "home", **given))
    assert done.returncode == 1
    warning, error, *_ = done.stderr.splitlines()
    assert warning == "warning: GRPO_MAX_CHAT has no effect: no setting has this name"
    assert error.startswith(f"Error: {tmp_path / 'home'}: ")
    assert f"MiB are free, {1 << 40} MiB are required" in error
    assert "lower GRPO_MIN_FREE_DISK_BYTES" in done.stderr
    assert not (tmp_path / "home" / "logs").exists()


def test_more_slots_than_gpus_are_refused_before_the_worker_starts(tmp_path: Path) -> None:
    given = environment(tmp_path, GRPO_GPUS="2", GRPO_SLOTS="1")
    done = call_grpo("worker", "--slots", "3", environment=given)
    expected = "Error: GRPO_SLOTS is 3, but each slot needs a GPU and GRPO_GPUS is 2\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)
