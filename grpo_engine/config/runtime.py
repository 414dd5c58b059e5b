"""How an engine uses its machine: set by the deployment, not by jobs.

Separate from `job.py`, so that a command that only reads the deployment's settings loads no grader.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from grpo_engine.contract.records import Record


def _in_order(ports: tuple[int, int]) -> tuple[int, int]:
    if ports[0] > ports[1]:
        raise ValueError("the first port is above the last")
    return ports


Port = Annotated[int, Field(ge=1, le=65_535)]
Ports = Annotated[tuple[Port, Port], AfterValidator(_in_order)]


class Runtime(Record):
    """How the engine uses its machine. These settings change speed and memory, never the mathematics."""

    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    sampler: Literal["auto", "torch", "vllm"] = "auto"
    """ "auto": vLLM on a GPU if it is installed, otherwise torch."""
    sampler_memory: float = Field(0.45, gt=0, lt=1)
    """Share of a GPU's memory (on a CPU: of the machine's) that vLLM's weights and cache may take."""
    ranks: int = Field(1, ge=1, le=64)
    """Processes that train one job together, each on its own device."""
    sharding: Literal["replicated", "fsdp"] = "replicated"
    """How several ranks hold the model: each has a whole copy, or each has a share of every layer."""
    tensor_parallel: int = Field(1, ge=1, le=64)
    """Consecutive ranks on a host that share one vLLM; each holds a part of its weights and cache."""
    samplers: int = Field(0, ge=0, le=64)
    """Number of processes that sample for the ranks, each on its own device; 0: each rank samples."""
    agent_host: str | None = None
    """Name or address of this machine at which agents reach the engine; None: its host name."""
    agent_ports: Ports | None = None
    """First and last port at which agents reach the engine: each rank of each job takes a free one in each
    step. None: any port."""
    weight_budget_bytes: int | None = Field(None, ge=1)
    """Maximum bytes of weights that a rank may hold for training and, separately, for sampling; None: as many
    as fit on its device."""
    num_threads: int | None = Field(None, ge=1)
    token_budget: int | None = Field(None, ge=16)
    """Tokens of one training micro-batch; None: chosen for the device. Halved if memory is too small."""
    sample_budget: int = Field(512, ge=1)
    """Completions sampled at the same time."""
    grader_processes: int = Field(2, ge=1, le=256)
    """Processes for graders that may hang or crash."""
