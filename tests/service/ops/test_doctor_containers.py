"""`grpo doctor` in a container, whose user may not read everything and which may run no job."""

import json
from pathlib import Path

import pytest
from pydantic import SecretStr

from grpo_engine.sandbox import Capability
from service.ops.doctor import machine, software
from service.ops.doctor.findings import Level
from service.settings import Settings
from tests.service.job_samples import CONTEXT_TOKENS, make_model
from tests.support.container_profile import run_without_overrides

PRODUCTION = {
    "mode": "production",
    "database_url": SecretStr("postgresql://grpo@127.0.0.1:1/grpo"),
    "broker_url": SecretStr("redis://127.0.0.1:1/0"),
    "engine_module": "nowhere_to_be_found",
}
SCRIPT = """
import sys
from pathlib import Path
from service.ops.doctor import machine
from service.platform.catalog import Catalog
from service.platform.token_counting import ModelTextError, load_model_text
from service.settings import Settings

settings = Settings(home=Path(sys.argv[1]), models=Path(sys.argv[1]) / "models.json")
entry = Catalog(settings).entries()["tiny"]
print(*machine.models(settings), entry.created, sep="\\n")
try:
    print(load_model_text(entry.folder).context_tokens)
except ModelTextError as error:
    print(error)
"""


def test_a_model_that_may_not_be_read_is_a_failure_and_is_still_listed(tmp_path: Path) -> None:
    model = make_model(tmp_path, "tiny")
    weights = model / "model.safetensors"
    weights.touch(0o200)
    (tmp_path / "models.json").write_text(json.dumps({"tiny": {"path": str(model)}}))
    found, created, tokens = run_without_overrides("-c", SCRIPT, str(tmp_path)).stdout.splitlines()
    assert f"tiny: {weights} (--w-------) cannot be read by the user with id" in found
    assert "chmod -R a+rX" in found
    assert (int(created) > 0, tokens) == (True, str(CONTEXT_TOKENS))
    model.chmod(0)
    found, *rest = run_without_overrides("-c", SCRIPT, str(tmp_path)).stdout.splitlines()
    assert f"tiny: {model} (d---------) cannot be read" in found
    assert rest == ["0", "the folder of tiny cannot be read"]
    model.chmod(0o755)


def test_a_missing_engine_is_a_failure_only_on_a_host_that_runs_jobs(tmp_path: Path) -> None:
    api = Settings(home=tmp_path, **PRODUCTION)
    (found,) = software.engine(api)
    assert (found.level, found.found.split(" has no ")[1]) == (
        Level.WARNING,
        "nowhere_to_be_found; no worker has started on this host",
    )
    api.alive_file.touch()
    (found,) = software.engine(api)
    assert (found.level, found.found.split(" has no ")[1]) == (Level.FAILURE, "nowhere_to_be_found")
    (found,) = software.engine(Settings(home=tmp_path / "embedded", engine_module="nowhere_to_be_found"))
    assert found.level is Level.FAILURE


def test_a_missing_sandbox_refuses_jobs_only_on_a_host_that_runs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "self_test", lambda: Capability(None, reason="no bubblewrap"))
    api = Settings(home=tmp_path, **PRODUCTION)
    (found,) = machine.sandbox(api)
    assert found.found == "no bubblewrap; no worker has started on this host"
    assert found.advice.startswith("The API and the sweeper need no sandbox. ")
    api.alive_file.touch()
    (found,) = machine.sandbox(api)
    assert "; no worker" not in found.found
    assert found.advice.startswith("Install bubblewrap")
