"""One of several processes that train together: `python -m tests.engine.run.rank_worker RANK WORLD FOLDER`.

FOLDER holds `cases.json` (name → RunConfig); each case's parameters and last metrics after three steps are
written to `NAME.RANK.pt`.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from grpo_engine.config.job import RunConfig
from tests.engine.injection import after_steps, steps_of


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=world)
    for name, case in json.loads((folder / "cases.json").read_text()).items():
        config = RunConfig.model_validate(case)
        found = after_steps(config, steps_of(config))
        torch.save(found, folder / f"{name}.{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
