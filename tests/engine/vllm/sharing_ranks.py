"""Cases by ranks that share a vLLM: `python -m tests.engine.vllm.sharing_ranks FOLDER HOSTS RANKS`.

All run on this machine; their environment describes HOSTS with RANKS each.

FOLDER holds `cases.json`: `runs` (name → RunConfig), each a whole run as in `run/distributed/cases.py`, and
`uneven`, a job whose policy rank N samples from N + 1 times: every rank writes its tokens, and what its group
agreed on, to `FOLDER/uneven.RANK.json`. Before, each odd rank waits for a turn until the rank before it has
sampled one, as rollouts wait for the only place of an agent.
"""

import json
import os
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from grpo_engine.config.job import RunConfig, hyperparameters_of
from grpo_engine.objective.types import Group, Prompt
from grpo_engine.parallel.ranks import Ranks
from grpo_engine.process.parent_death import end_with_parent
from grpo_engine.rollout.sampler.base import AroundSampler, Continuation, NextTurn, OnGroup, Sampling
from grpo_engine.rollout.sampler.turns import TurnQueue
from grpo_engine.rollout.sampler.vllm.sampler import VllmSampler
from grpo_engine.rollout.sampler.vllm.shared_engine import in_lockstep
from grpo_engine.run.rank_setup import joined_ranks, open_policy
from tests.engine.run.distributed.cases import run

UNEVEN = Sampling(max_tokens=12, temperature=1.0, seed=3, step=2)


class SamplesRepeatedly(AroundSampler):
    """One call of the inner sampler for each rank up to this one; returns all groups."""

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        calls = range(Ranks.current().rank + 1)
        return [
            group
            for call in calls
            for group in self.inner.generate(prompts_P, group_size, sampling.starting_at(call))
        ]


class SamplesInTurn(AroundSampler):
    """One turn, on odd ranks after that of the rank before it."""

    def __init__(self, inner: VllmSampler, pipe: tuple[int, int]) -> None:
        super().__init__(inner)
        self.reads, self.writes = pipe

    def generate(
        self,
        prompts_P: Sequence[Prompt],
        group_size: int,
        sampling: Sampling,
        on_group: OnGroup | None = None,
    ) -> list[Group]:
        with ThreadPoolExecutor() as pool:
            is_odd = Ranks.current().rank % 2
            sampled_before = pool.submit(os.read, self.reads, 1) if is_odd else pool.submit(int)
            queue = TurnQueue(most=1, longest=20)
            turn = NextTurn(prompts_P[0], Continuation(0, 0, 1, max_tokens=4))
            queue.put_after(lambda: turn, [sampled_before])
            self.inner.sample_turns(queue, sampling, lambda *_: is_odd or os.write(self.writes, b"1"))
        return []


def main(folder: Path, hosts: int, local: int) -> None:
    """Fork the ranks from this process, which has imported vLLM if the forking server started it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address, port = probe.getsockname()
    os.environ |= {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    os.environ |= {"WORLD_SIZE": str(hosts * local), "LOCAL_WORLD_SIZE": str(local)}
    launcher = os.getpid()
    pipes = [os.pipe() for _ in range(hosts * local // 2)]
    for rank in range(hosts * local):
        if os.fork() == 0:
            end_with_parent(launcher)
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank % local)}
            work(folder, pipes[rank // 2])
            return
    for _ in range(hosts * local):
        _, status = os.wait()
        if status:  # the end of this process ends the others, which may wait for that rank
            sys.exit(1)


def work(folder: Path, pipe: tuple[int, int]) -> None:
    cases = json.loads((folder / "cases.json").read_text())
    runs = {name: RunConfig.model_validate(case) for name, case in cases["runs"].items()}
    with joined_ranks(RunConfig.model_validate(cases["uneven"])) as config:
        torch.set_num_threads(1)
        result = folder / f"uneven.{Ranks.current().rank}.json"
        result.write_text(json.dumps(sample_unevenly(config, folder, pipe)))
        for name, each in runs.items():
            run(each, folder, name)


def sample_unevenly(config: RunConfig, folder: Path, pipe: tuple[int, int]) -> dict[str, Any]:
    policy = open_policy(config, hyperparameters_of(config.method), torch.device("cpu"), torch.float32)
    inner = VllmSampler(policy, config.runtime, 64, folder)
    inner.load_policy(0)
    rank = Ranks.current().rank
    lockstep = in_lockstep(SamplesInTurn(inner, pipe))
    lockstep.generate([Prompt(rank, "", (6, 9), {})], 1, UNEVEN)
    sampler = in_lockstep(SamplesRepeatedly(inner))
    groups = sampler.generate([Prompt(rank, "", (6 + rank, 9), {})], 2, UNEVEN)
    return {
        "tokens": [[each.token_ids for each in group.completions] for group in groups],
        "agreed": [inner.engine.agreed(True), inner.engine.agreed(rank % 2 == 0)],
        "size": inner.engine.core.vllm_config.parallel_config.tensor_parallel_size,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
