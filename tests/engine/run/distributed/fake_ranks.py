"""Ranks that follow a script: `python -m tests.engine.run.distributed.fake_ranks RUN_DIR DEED…`.

When all are there, rank N does the N-th deed: `end:STATUS`, `die:SIGNAL`, `fail` (an error of its own),
`stop` (until SIGTERM), `late` (as `stop`, but deaf until the file `listen` is there), `hang`.
"""

import os
import sys
import time
from pathlib import Path

from grpo_engine.__main__ import StopRequest
from grpo_engine.config.job import RunConfig
from grpo_engine.contract.events import Failed
from grpo_engine.run import rank_launcher

MODULE = "tests.engine.run.distributed.fake_ranks"


def main(run_dir: Path, *deeds: str) -> int:
    config = RunConfig.model_validate(
        {
            "job_id": "ftjob-test",
            "model": {"name": "none", "path": "none"},
            "training_file": "none",
            "method": {"type": "supervised", "supervised": {}},
            "runtime": {"ranks": len(deeds), "device": "cpu"},
        }
    )
    if not rank_launcher.is_rank():
        rank_launcher.LAST_SECONDS = 0.3
        return rank_launcher.launch([sys.executable, "-m", MODULE, str(run_dir), *deeds], config, run_dir)
    rank_launcher.follow_launcher()
    return do(deeds[int(os.environ["RANK"])], config, run_dir)


def do(deed: str, config: RunConfig, run_dir: Path) -> int:
    kind, _, value = deed.partition(":")
    if kind == "late":
        (run_dir / f"deaf-{os.environ['RANK']}").touch()
        wait_for(run_dir / "listen")
    should_stop = StopRequest()
    (run_dir / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    for rank in range(config.runtime.ranks):
        wait_for(run_dir / f"pid-{rank}")
    if kind == "end":
        return int(value)
    if kind == "die":
        os.kill(os.getpid(), int(value))
    if kind == "fail":
        log = rank_launcher.open_log(config, run_dir)
        log.write(Failed(code="spend_limit", message="enough"))
        return 1
    while kind == "hang" or not should_stop():
        time.sleep(0.01)
    return 0


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
