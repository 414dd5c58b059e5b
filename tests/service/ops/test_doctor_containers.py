"""`grpo doctor` in a container, whose user may not read everything and which may run no job."""

import json
from pathlib import Path

from tests.service.job_samples import CONTEXT_TOKENS, make_model
from tests.support.container_profile import run_without_overrides

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


def test_a_model_that_may_not_be_read_is_a_failure_and_is_listed_all_the_same(tmp_path: Path) -> None:
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
