"""Runs the fake engine for jobs whose first row has `faults`, the real engine for all others.

With `GRPO_ENGINE_MODULE=tests.support.either_engine` one deployment runs both.
"""

import json
import sys
from pathlib import Path

from grpo_engine.config.job import RunConfig
from grpo_engine.run.prestart import await_job
from tests.support.fake_engine import FakeEngine


def main(arguments: list[str]) -> int:
    if arguments == ["--warm"]:
        arguments = await_job()
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    config = RunConfig.model_validate_json(Path(given["--config"]).read_text())
    with Path(config.training_file).open() as rows:
        is_fake = "faults" in json.loads(rows.readline())
    if is_fake:
        return FakeEngine(config, Path(given["--run-dir"])).run()
    from grpo_engine.__main__ import main as run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
