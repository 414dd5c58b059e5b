"""One part of the GPU set, in its own process, so that the peak memory is that of this part.

    python -m bench.gpu.measure INPUT.json OUTPUT.json

Results are written after each cell, so that an interrupted part loses only the current cell. A cell that
fails is recorded with its error; one that no longer fits into the part's time is recorded as not run.
Training runs the policy gradient and the optimiser over groups of random tokens, as a job's step does; it
leaves out sampling, scoring and the reference model (β is 0). A sampled completion never ends before its
length limit, so the number of tokens is known; prompts are random words.
"""

import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench import machine
from bench.gpu.plan import Cell
from bench.trl import flops
from bench.trl.models import Shape, make_random_model
from bench.trl.ours import config_of
from bench.trl.side import Spec
from grpo_engine.config.job import Reinforcement
from grpo_engine.config.reinforcement import ReinforcementHyperparameters
from grpo_engine.contract.errors import EngineError
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from grpo_engine.objective.metrics import peak_memory_bytes
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence
from grpo_engine.objective.types import Prompt
from grpo_engine.rollout.sampler.base import Sampler, Sampling
from grpo_engine.rollout.sampler.choice import open_sampler
from grpo_engine.run.build import choose_dtype
from grpo_engine.run.devices import choose_device
from grpo_engine.training.gradients import PolicyGradient
from grpo_engine.training.micro_batch_budget import MicroBatchBudget
from grpo_engine.training.optimizer import Optimizer

Measure = Callable[[Cell, float], dict[str, Any]]
"""A cell and its deadline (`time.monotonic`) → its figures."""


def main() -> None:
    task, output = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    spec = Spec(**task["spec"])
    torch.set_num_threads(spec.threads)
    if task["kind"] == "machine":
        dtype = getattr(torch, spec.dtype)
        save(output, {"figures": machine.describe(spec.device, dtype, spec.threads, task["matrix_size"])})
    elif task["kind"] == "model":
        save(output, {"figures": make_random_model(spec, Shape(**task["shape"]))})
    else:
        cells = [Cell(**cell) for cell in task["cells"]]
        is_training = task["kind"] == "train"
        measure = open_training(spec, task["passes"]) if is_training else open_sampling(spec, cells)
        measure_cells(measure, cells, task["until"], output)


def measure_cells(measure: Measure, cells: list[Cell], until: float, output: Path) -> None:
    """Write each cell's figures, its error, or why it was not started."""
    found: list[dict[str, Any]] = []
    per_token = 0.0
    for cell in cells:
        began = time.monotonic()
        expected = per_token * cell.completion_tokens
        if began + expected > until:
            reason = f"it needs about {expected:.0f} s; its part has {until - began:.0f} s left"
            found.append({"not_run": reason})
        else:
            found.append(_measured(measure, cell, until))
            per_token = (time.monotonic() - began) / cell.completion_tokens
        save(output, {"cells": found})


def _measured(measure: Measure, cell: Cell, until: float) -> dict[str, Any]:
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        return {"figures": {**measure(cell, until), **memory()}}
    except (RuntimeError, ValueError, EngineError) as error:
        # such as too little memory, or sizes that the sampler refuses; other cells may still fit
        return {"error": f"{type(error).__name__}: {str(error)[:1000]}"}


def memory() -> dict[str, float]:
    """Memory in bytes. On a GPU: this cell's peak, and all memory in use on the device (vLLM has its own
    pool). On a CPU: the process's peak so far."""
    if not torch.cuda.is_available():
        return {"peak_memory_bytes": peak_memory_bytes(torch.device("cpu"))}
    free, total = torch.cuda.mem_get_info()
    return {
        "peak_memory_bytes": float(torch.cuda.max_memory_allocated()),
        "peak_reserved_bytes": float(torch.cuda.max_memory_reserved()),
        "device_in_use_bytes": float(total - free),
    }


def save(path: Path, found: dict[str, Any]) -> None:
    """Replace the file atomically, because it may be read at any time."""
    partial = path.with_suffix(".part")
    partial.write_text(json.dumps(found, indent=2) + "\n")
    os.replace(partial, path)


def open_training(spec: Spec, passes: int) -> Measure:
    """Load the model once for all cells."""
    policy, settings = policy_of(spec)

    def measure(cell: Cell, until: float) -> dict[str, Any]:
        return train(policy, settings, spec, cell, passes, until)

    return measure


def policy_of(spec: Spec) -> tuple[Policy, ReinforcementHyperparameters]:
    """Policy and hyperparameters, built as for a job."""
    config = config_of(spec)
    assert isinstance(config.method, Reinforcement)
    settings = config.method.reinforcement.hyperparameters
    device = choose_device(config.runtime)
    dtype = choose_dtype(config.runtime, device)
    return load_policy(config.model, settings, device, dtype, spec.seed), settings


def train(
    policy: Policy,
    settings: ReinforcementHyperparameters,
    spec: Spec,
    cell: Cell,
    passes: int,
    until: float,
) -> dict[str, Any]:
    """Make one pass to warm up and to find the micro-batch size, then timed passes."""
    _keep_activations(policy, not cell.recompute)
    groups = random_groups(cell, policy.model.config.vocab_size, spec.seed)
    optimizer = Optimizer(policy.trainable, settings)
    budget = MicroBatchBudget(policy, cell.tokens_at_a_time)
    gradients = PolicyGradient(policy, settings, groups, beta=0.0, correction="none")
    norms: list[float] = []

    def one_pass(step: int) -> float:
        machine.settle()
        began = time.perf_counter()
        found = budget.run(gradients, optimizer.clear, step)
        norms.append(optimizer.step(spec.learning_rate, found["loss"], step=step))
        machine.settle()
        return time.perf_counter() - began

    longest = one_pass(0)
    _start_peak()
    timed = [one_pass(1)]
    while len(timed) < passes and time.monotonic() + longest < until:
        timed.append(one_pass(len(timed) + 1))
    return _figures(policy, spec, cell, timed, budget, norms)


def _figures(
    policy: Policy, spec: Spec, cell: Cell, timed: list[float], budget: MicroBatchBudget, norms: list[float]
) -> dict[str, Any]:
    seconds = statistics.median(timed)
    sizes = replace(
        spec, prompts=cell.prompts, group_size=cell.group_size, prompt_tokens=cell.prompt_tokens, beta=0.0
    )
    return {
        "seconds": seconds,
        "passes": len(timed),
        "tokens": cell.tokens,
        "tokens_per_second": cell.tokens / seconds,
        "trained_tokens_per_second": cell.completion_tokens / seconds,
        "flops": flops.train_flops(policy.model.config, sizes, cell.completion_tokens, cell.length),
        "tokens_at_a_time": budget.tokens,
        "activations_recomputed": policy.fast is not None and policy.fast.checkpointed,
        "own_kernels": policy.fast is not None,
        "grad_norm": norms[-1],
        "warnings": [warning.message for warning in budget.take_warnings()],
    }


def _start_peak() -> None:
    """Exclude the first pass's failed micro-batch sizes from the peak."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _keep_activations(policy: Policy, keep: bool) -> None:
    """Undo what an earlier cell changed when it ran out of memory. Raises ValueError if the model cannot
    recompute activations."""
    if policy.fast is not None:
        policy.fast.checkpointed = not keep
    elif not keep:
        raise ValueError("this model does not use our kernels, so its activations are always kept")


def random_groups(cell: Cell, vocab: int, seed: int) -> list[TrainingGroup]:
    """Random tokens and advantages; every token is trained, as in DAPO's loss."""
    drawn = random.Random(seed)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(drawn.randrange(2, vocab) for _ in range(count))

    def sequence(index: int) -> TrainingSequence:
        advantage = drawn.gauss(0.0, 1.0)
        return TrainingSequence(
            token_ids=tokens(cell.length),
            logprobs=(0.0,) * cell.length,
            advantages=(advantage,) * cell.length,
            weight=1.0 / cell.completion_tokens,
            index=index,
        )

    size = cell.group_size
    return [
        TrainingGroup(tokens(cell.prompt_tokens), tuple(sequence(group * size + i) for i in range(size)))
        for group in range(cell.prompts)
    ]


WARM_UP_TOKENS = 8


def open_sampling(spec: Spec, cells: list[Cell]) -> Measure:
    """Load model and sampler once for all cells; no figure includes the loading."""
    policy, settings = policy_of(spec)
    policy.stop_set = frozenset()
    context = max(cell.prompt_tokens + cell.length for cell in cells)
    folder = Path(tempfile.mkdtemp(dir=Path(spec.model).parent))
    sampler = open_sampler(config_of(spec).runtime, policy, settings, context, folder)
    sampler.load_policy(0)

    def measure(cell: Cell, until: float) -> dict[str, Any]:
        return sample(sampler, policy, spec, cell)

    return measure


def sample(sampler: Sampler, policy: Policy, spec: Spec, cell: Cell) -> dict[str, Any]:
    """Make a short generation to warm up, then a timed one with other prompts, so that no cache helps."""
    _generate(sampler, policy, cell, Sampling(max_tokens=WARM_UP_TOKENS, seed=spec.seed))
    machine.settle()
    began = time.perf_counter()
    tokens = _generate(sampler, policy, cell, Sampling(max_tokens=cell.length, seed=spec.seed, step=1))
    machine.settle()
    seconds = time.perf_counter() - began
    if tokens != cell.completion_tokens:
        raise RuntimeError(f"sampled {tokens} tokens instead of {cell.completion_tokens}")
    sizes = replace(spec, prompts=cell.prompts, group_size=cell.group_size, prompt_tokens=cell.prompt_tokens)
    config = policy.model.config
    return {
        "seconds": seconds,
        "tokens": tokens,
        "tokens_per_second": tokens / seconds,
        "tokens_per_second_of_one": cell.length / seconds,
        "flops": flops.decode_flops(config, sizes, tokens, cell.length),
        "bytes": flops.decode_bytes(config, sizes, cell.length, policy.compute_dtype.itemsize),
        "sampler": type(sampler).__name__,
        "decoder": policy.decoder.name if policy.decoder else None,
    }


def _generate(sampler: Sampler, policy: Policy, cell: Cell, sampling: Sampling) -> int:
    """Sample once; returns the number of sampled tokens."""
    drawn = random.Random(f"{sampling.seed}/{sampling.step}")
    vocab = policy.model.config.vocab_size
    prompts = [
        Prompt(row, "", tuple(drawn.randrange(2, vocab) for _ in range(cell.prompt_tokens)), {})
        for row in range(cell.prompts)
    ]
    groups = sampler.generate(prompts, cell.group_size, sampling)
    return sum(completion.num_sampled for group in groups for completion in group.completions)


if __name__ == "__main__":
    main()
