"""`grpo doctor`: a deployment that is well, and one broken thing of each kind."""

import json
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from grpo_engine.config.runtime import Runtime
from grpo_engine.models.fast.operations import compiled_version
from grpo_engine.sandbox import Capability
from service.cli.operate import doctor
from service.ops.doctor import machine, software, stores
from service.ops.doctor.examination import SERVERS, examine
from service.ops.doctor.findings import Finding, Level, ok
from service.ops.doctor.model import model as model_check
from service.platform.db import Database
from service.settings import Settings
from tests.conftest import on_sqlite, settings_for
from tests.engine.realistic import write_model
from tests.service.embedded import call_grpo, environment
from tests.service.ops.findings import bad, only
from tests.support.forking import client as forking
from tests.worker.jobs import insert_job

NO_TENSORS = (2).to_bytes(8, "little") + b"{}"
"""A safetensors file."""


@pytest.fixture
def model(settings: Settings) -> Path:
    folder = settings.models_dir / "tiny"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(NO_TENSORS)
    return folder


@on_sqlite
def test_a_healthy_deployment_has_no_problems(settings: Settings, model: Path) -> None:
    env = environment(settings.home)
    done = call_grpo("doctor", "--json", environment=env)
    findings = [Finding(Level(found.pop("level")), **found) for found in json.loads(done.stdout)]
    expected = ["engine"] if compiled_version() == "none" else []
    assert (done.returncode, [finding.check for finding in bad(findings)]) == (0, expected)
    checks = list(dict.fromkeys(finding.check for finding in findings))
    assert checks[:5] == ["packages", "settings", "database", "clock", "schema"]
    assert checks[5:] == ["broker", "storage", "disk", "models", "sandbox", "engine", "gpu"]


@on_sqlite
def test_a_model_is_loaded_and_the_way_it_is_computed_is_shown(settings: Settings) -> None:
    write_model(settings.models_dir / "phi", "Phi3Config", largest_logit=18, layers=2)
    changed = {"runtime": Runtime(dtype="bfloat16"), "engine_python": forking.engine_python()}
    in_bfloat16 = settings.model_copy(update=changed)
    reason = "(the engine's kernels do not support its layers or its adapter)"
    shown = f"forward packed {reason}, decoder shared_prompts {reason}, head frozen"
    assert list(model_check(in_bfloat16, "phi")) == [ok("model", f"phi in bfloat16 on cpu: {shown}")]


@on_sqlite
def test_a_model_that_cannot_be_loaded_is_a_failure_with_the_reason(settings: Settings, model: Path) -> None:
    assert only(model_check(settings, "none")).found == "none is not in the catalogue"
    env = environment(settings.home, GRPO_ENGINE_PYTHON=str(forking.engine_python()))
    done = call_grpo("doctor", "--model", "tiny", "--json", environment=env)
    assert done.returncode == 1
    (failed,) = [each for each in json.loads(done.stdout) if each["level"] == "failure"]
    assert failed["check"] == "model"
    assert failed["found"].startswith("tiny cannot be loaded: ")
    assert failed["found"].count("cannot be loaded") == 1


@on_sqlite
def test_one_failure_is_a_line_with_its_advice_and_exit_code_1(
    settings: Settings, database: Database
) -> None:
    insert_job(database)
    env = environment(settings.home, GRPO_ENGINE_PYTHON="/nowhere/python")
    done = call_grpo("doctor", environment=env)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    (place,) = [number for number, line in enumerate(lines) if line.startswith("failure ")]
    assert lines[place].split()[1:3] == ["engine", "/nowhere/python"]
    assert "GRPO_ENGINE_PYTHON" in lines[place + 1]
    assert [line.split()[1] for line in lines if line.startswith("warning")] == ["pool", "models"]


def test_findings_begin_in_one_column(capsys: pytest.CaptureFixture[str]) -> None:
    for check in SERVERS:
        doctor._show(ok(check, "reached"))
    assert len({line.index("reached") for line in capsys.readouterr().out.splitlines()}) == 1


def test_invalid_settings_are_the_only_failure(tmp_path: Path) -> None:
    done = call_grpo("doctor", "--json", environment=environment(tmp_path, GRPO_LEASE_SECONDS="1"))
    found = [each for each in json.loads(done.stdout) if each["level"] != "ok"]
    assert done.returncode == 1
    assert [each["check"] for each in found] == ["settings"]
    assert "GRPO_SELF_FENCE_SECONDS" in found[0]["found"]


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("GRPO_RUNTIME", "{bad", "it is not JSON"),
        ("GRPO_WEBHOOK_BACKOFF_SECONDS", "5,6", "it is not JSON"),
        ("GRPO_RUNTIME", '{"devise": 1}', "devise: Extra inputs are not permitted"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named_without_its_value(
    tmp_path: Path, variable: str, value: str, expected: str
) -> None:
    done = call_grpo("list", environment=environment(tmp_path, **{variable: value}))
    assert (done.returncode, variable in done.stderr, expected in done.stderr) == (1, True, True), done.stderr
    assert "Traceback" not in done.stderr
    assert value not in done.stderr


def test_a_variable_that_no_setting_reads_is_a_warning(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRPO_RUNTIME__DTYPE", "float32")
    monkeypatch.setenv("GRPO_RUNTIME", "{}")
    found, unknown = software.settings_found(settings)
    assert found.level is Level.OK
    assert (unknown.level, unknown.found.split()[0]) == (Level.WARNING, "GRPO_RUNTIME__DTYPE")


def test_a_package_that_is_missing_or_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["nowhere-to-be-found>=1", "fastapi<0.1; extra == 'service'", "torch>=99; extra == 'engine'"]
    monkeypatch.setattr(software, "requires", lambda _name: wanted)
    found = only(software.packages()).found
    assert found.startswith("nowhere-to-be-found is missing; fastapi is 0.")
    assert "torch" not in found


def test_a_sandbox_that_fails_an_attack_is_a_warning(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "self_test", lambda: Capability(None, reason="not contained: network"))
    found = only(machine.sandbox(settings))
    assert found.level is Level.WARNING
    assert found.found.startswith("not contained: network; ")
    assert "bubblewrap" in found.advice


@pytest.mark.parametrize(
    ("configured", "visible", "usable", "level"),
    [
        (0, 0, 0, Level.OK),
        (2, 2, 2, Level.OK),
        (2, 2, 0, Level.FAILURE),
        (2, 0, 0, Level.WARNING),
    ],
)
def test_gpus_that_torch_does_not_see_are_reported(
    configured: int, visible: int, usable: int, level: Level
) -> None:
    assert software.gpus(configured, visible, usable, None).level is level


@pytest.mark.parametrize(("is_compiled", "usable_gpus"), [(True, 0), (False, 1), (False, 0)])
def test_an_engine_without_compiled_operations_is_a_warning_on_a_cpu(
    is_compiled: bool, usable_gpus: int
) -> None:
    found = list(software.operations(is_compiled=is_compiled, usable_gpus=usable_gpus))
    assert [finding.level for finding in found] == [Level.WARNING] * (not (is_compiled or usable_gpus))


def test_an_engine_that_lacks_a_module_is_a_failure(tmp_path: Path) -> None:
    found = only(software.engine(settings_for(tmp_path, engine_module="nowhere.engine")))
    assert found.found.endswith("has no nowhere")


def test_an_engine_whose_interpreter_breaks_shows_why(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'libpython is lost' >&2\nexit 3\n")
    broken.chmod(0o755)
    found = only(software.engine(settings_for(tmp_path, engine_python=broken)))
    assert "libpython is lost" in found.found


def test_each_broken_entry_of_the_catalogue_is_named(settings: Settings, model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").write_bytes(NO_TENSORS[:-1])
    assert only(machine.models(settings)).found.startswith("tiny: model.safetensors: its header is not valid")
    (model / "model.safetensors").unlink()
    (settings.home / "models.json").write_text(
        json.dumps({"gone": {"path": "/nowhere/model"}, "hub": {"path": "org/model"}})
    )
    levels = {finding.found.split(":")[0]: finding.level for finding in machine.models(settings)}
    assert levels == {"gone": Level.FAILURE, "hub": Level.WARNING, "tiny": Level.FAILURE}
    (settings.home / "models.json").write_text("{")
    assert only(machine.models(settings)).level is Level.FAILURE


def test_a_check_that_hangs_or_fails_is_a_finding_beside_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forever = threading.Event()

    def hang(_settings: Settings) -> Iterable[Finding]:
        yield ok("broker", "so far")
        forever.wait()

    def break_off(_settings: Settings) -> Iterable[Finding]:
        raise RuntimeError("redis://:hidden@host broke")

    monkeypatch.setattr(stores, "broker", hang)
    monkeypatch.setattr(machine, "sandbox", lambda _settings: forever.wait())
    monkeypatch.setattr(stores, "disk", break_off)
    settings = settings_for(tmp_path, engine_python="/nowhere/python")
    found = [each for each in examine(settings, 3.0) if each.check in ("broker", "disk", "sandbox")]
    forever.set()
    assert [finding.level for finding in found] == [Level.OK, *[Level.FAILURE] * 3]
    assert found[1].found == found[3].found == "no answer within 3 s"
    assert ("that server" in found[1].advice, "this machine" in found[3].advice) == (True, True)
    assert found[2].found == "the check failed: RuntimeError: redis://:***@host broke"


@on_sqlite
def test_checks_that_get_no_thread_are_findings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name == "disk":
            raise RuntimeError("can't start new thread")
        started(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    found = {each.check: each for each in examine(settings, 3.0)}
    assert found["disk"].found == "the check was not started: can't start new thread"
    assert found["disk"].level is Level.FAILURE
    assert "limit of processes" in found["disk"].advice
    assert found["packages"].level is Level.OK
