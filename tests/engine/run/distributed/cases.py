"""Whole runs, one after another, as one of the ranks that `torchrun` started: `… cases.py FOLDER`.

FOLDER holds `cases.json` (name → RunConfig); each case runs in `FOLDER/NAME`, and the first rank writes its
events, and whether its weights were sharded, to `FOLDER/NAME.json`.
"""

import json
import sys
from pathlib import Path

from torch.distributed.fsdp import FSDPModule

from grpo_engine.config.job import RunConfig
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.run.build import build_loop
from grpo_engine.run.rank_setup import agreed_by_ranks, joined_ranks


def main(folder: Path) -> None:
    cases = json.loads((folder / "cases.json").read_text())
    configs = {name: RunConfig.model_validate(case) for name, case in cases.items()}
    with joined_ranks(next(iter(configs.values()))) as first:
        for name, config in configs.items():
            limits = {"num_threads": first.runtime.num_threads}
            runtime = config.runtime.model_copy(update=limits)
            run(config.model_copy(update={"runtime": runtime}), folder, name)


def run(config: RunConfig, folder: Path, name: str) -> None:
    trainer = build_loop(config, folder / name)
    events = [event.model_dump(mode="json") for event in trainer.run(agreed_by_ranks(lambda: False))]
    if Ranks.current().is_first:
        is_sharded = isinstance(trainer.method.policy.model, FSDPModule)
        (folder / f"{name}.json").write_text(json.dumps({"events": events, "is_sharded": is_sharded}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
